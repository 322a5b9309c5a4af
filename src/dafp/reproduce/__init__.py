"""The paper's tables and figures by name, each with the jobs that reproduce it."""

import dataclasses
import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase

from ..errors import TrainingError
from ..training.config import Config, changed
from .figures import FIGURES, plot
from .page import answers, reproduction_page
from .profiles import PROFILES
from .tables import TABLES, Figure, Item, TableRow, table

__all__ = [
    "FIGURES",
    "NAMES",
    "PROFILES",
    "TABLES",
    "Figure",
    "Item",
    "TableRow",
    "answers",
    "find",
    "jobs_of",
    "reproduction_page",
    "with_settings",
]

NAMES = (*TABLES, *FIGURES)


def find(name: str, profile: str = "lite", rows: Sequence[str] = ()) -> Item:
    """A table or figure by name; `rows` (numbers from 1, or name patterns) keeps only some rows."""
    if name not in NAMES:
        near = difflib.get_close_matches(name, NAMES, 1)
        hint = f"; did you mean {near[0]!r}?" if near else "."
        raise TrainingError(
            f"there is no table or figure {name!r}{hint} There are {', '.join(NAMES)}"
        )
    item = table(name, profile) if name in TABLES else plot(name, profile)
    if not rows:
        return item
    chosen: dict[int, TableRow] = {}
    for wanted in rows:
        found = {
            number: row
            for number, row in enumerate(item.rows, 1)
            if wanted == str(number) or fnmatchcase(row.name, wanted)
        }
        if not found:
            known = ", ".join(f"{n} {row.name}" for n, row in enumerate(item.rows, 1))
            raise TrainingError(f"{name} has no row {wanted!r}; its rows are {known}")
        chosen |= found
    return dataclasses.replace(item, rows=tuple(chosen[number] for number in sorted(chosen)))


def jobs_of(item: Item, runs: int) -> list[Config]:
    """The jobs of an item: every configuration once per run, seeds from 0."""
    if runs < 1:
        raise TrainingError(f"runs={runs} must be at least 1")
    configs = dict.fromkeys(figure.config for row in item.rows for figure in row.figures)
    return [dataclasses.replace(config, seed=seed) for config in configs for seed in range(runs)]


def with_settings(item: Item, values: dict[str, object], source: str) -> Item:
    """The item with some settings of all its configurations replaced."""

    def new(figure: Figure) -> Figure:
        return dataclasses.replace(figure, config=changed(figure.config, values, source))

    rows = tuple(
        dataclasses.replace(row, figures=tuple(map(new, row.figures))) for row in item.rows
    )
    return dataclasses.replace(item, rows=rows)
