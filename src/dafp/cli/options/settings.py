"""The options of `dafp settings`."""

from typing import Annotated

import typer

from .shared import AsJson


def settings(
    word: Annotated[
        str | None, typer.Argument(metavar="WORD", help="Show only settings that contain it.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the settings of `dafp run` with their defaults: change one by --set NAME=VALUE.

    Example: dafp settings finetune
    """
