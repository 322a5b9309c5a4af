"""The work of `dafp settings`."""

import json

import typer
from rich.markup import escape

from ..errors import TrainingError
from ..storage.toml import toml_text
from ..training.settings import all_run_settings
from .printing import printer, table_of


def settings(*, word: str | None, as_json: bool) -> None:
    """Print the settings whose name or meaning contains a word; all of them without one."""
    found = [
        one
        for one in all_run_settings()
        if word is None or word.lower() in f"{one.name} {one.meaning}".lower()
    ]
    if not found:
        raise TrainingError(f"no setting contains {word!r}; dafp settings lists all of them")
    if as_json:
        typer.echo(json.dumps([vars(one) for one in found]))
        return
    table = table_of("settings of dafp run", ["setting", "default", "meaning"], [])
    for one in found:
        default = toml_text({"x": one.default}).partition("=")[2].strip()
        table.add_row(one.name, escape(default), escape(one.meaning))
    printer().print(table)
