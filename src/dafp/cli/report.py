"""The work of `dafp report`: write the page of a run."""

from pathlib import Path

import typer

from ..report import write_report


def report(*, run: Path) -> None:
    """Write the report and print its path."""
    typer.echo(write_report(run))
