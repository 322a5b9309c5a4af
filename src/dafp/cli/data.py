"""The work of `dafp data get`, `dafp data check` and `dafp data list`."""

from pathlib import Path

import typer
from rich.table import Table

from ..data import NAMES, check_name
from ..data import download as sets
from ..errors import DataError
from .printing import printer


def get(*, name: str, root: Path, source: str) -> None:
    """Download a data set and print the paths of its files."""
    check_name(name)
    files = sets.fetch(name, root, source, say=lambda text: typer.echo(text, err=True))
    for file in files:
        typer.echo(file)


def check(*, name: str, root: Path) -> None:
    """Verify a data set and print a line for each file."""
    check_name(name)
    for line in sets.check(name, root):
        typer.echo(line)


def list_(*, root: Path) -> None:
    """Print the table of data sets."""
    table = Table(title=f"data sets in {root}", title_justify="left")
    for column in ("name", "there", "where to get it"):
        table.add_column(column, overflow="fold")
    for name in NAMES:
        table.add_row(name, "yes" if _is_there(name, root) else "no", sets.where_from(name))
    printer().print(table)


def _is_there(name: str, root: Path) -> bool:
    """Whether the files exist; their contents are not checked."""
    try:
        sets.locate(name, root)
    except DataError:
        return False
    return True
