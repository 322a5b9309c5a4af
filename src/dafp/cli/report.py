"""The commands that write pages: `dafp report`."""

from pathlib import Path
from typing import Annotated

import typer

from ..report import write_report


def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a training run.")],
) -> None:
    """Write the page of a run (again), finished or not, and print where it is.

    Example: dafp report runs/default
    """
    typer.echo(write_report(run))
