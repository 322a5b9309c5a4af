"""The options of `dafp methods`."""

from typing import Annotated

import typer

from .shared import AsJson


def methods(
    word: Annotated[
        str | None, typer.Argument(metavar="WORD", help="Show only methods that contain it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the pruning methods by family, with paper, year and link: use one by --set method=NAME.

    Example: dafp methods reconstruction
    """
