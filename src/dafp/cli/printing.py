"""How results are printed: numbers are never truncated, and lines in a pipe are never wrapped."""

import os
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table

WIDE = 1000  # columns in a pipe or file, enough for any table


def printer() -> Console:
    """A console for results. Without a terminal, rich would assume 80 columns."""
    console = Console()
    return console if console.is_terminal else Console(width=WIDE)


def say(text: str) -> None:
    """Print a line of progress to stderr."""
    Console(stderr=True, soft_wrap=True).print(text, highlight=False, markup=False)


def is_first_process() -> bool:
    """Whether this is rank 0: of several processes (torchrun, accelerate launch) only it prints."""
    return os.environ.get("RANK", "0") == "0"


def table_of(title: str, names: Sequence[str], numbers: Sequence[str]) -> Table:
    """Columns of names, which a narrow terminal wraps, then of numbers, which are never wrapped."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=0)
    for name in names:
        table.add_column(name, overflow="fold")
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table
