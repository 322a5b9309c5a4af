"""The work of `dafp methods`."""

import json

import typer
from rich.markup import escape

from ..errors import TrainingError
from ..methods.origins import FAMILIES, ORIGINS
from .printing import printer, table_of


def methods(*, word: str | None, as_json: bool) -> None:
    """Print the methods whose name, family or paper contains a word; all of them without one."""
    found = [
        (name, origin)
        for family in FAMILIES
        for name, origin in ORIGINS.items()
        if origin.family == family and (word or "").lower() in f"{name} {vars(origin)}".lower()
    ]
    if not found:
        raise TrainingError(f"no method contains {word!r}; dafp methods lists all of them")
    if as_json:
        typer.echo(json.dumps([{"name": name, **vars(origin)} for name, origin in found]))
        return
    table = table_of("methods of dafp run", ["method", "family", "paper", "description"], [])
    for name, origin in found:
        paper = f"{origin.paper} {origin.link}".strip()
        table.add_row(name, origin.family, escape(paper), escape(origin.description))
    printer().print(table)
