"""The options of `dafp report`."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="DIR", help="Directory of a training run.")],
) -> None:
    """Write the report of a run, finished or not, and print where it is.

    dafp run writes it at its end; this command shows how far an unfinished run has got.

    Example: dafp report runs/default
    """
