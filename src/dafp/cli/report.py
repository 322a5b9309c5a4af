"""The commands that write pages: `dafp report`."""

from pathlib import Path

import typer

from ..report import write_report


def report(*, run: Path) -> None:
    """Write the report and print its path."""
    typer.echo(write_report(run))
