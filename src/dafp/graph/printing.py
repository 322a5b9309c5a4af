"""Short texts and HTML tables for values that hold thousands of numbers."""

import html
from collections.abc import Sequence

MAX_LINES = 20


def shortened(values: Sequence[int], brackets: str = "()") -> str:
    """(0, 1, …, 63): the first two numbers and the last, unless all of them fit."""
    if len(values) > 8:
        inside = f"{values[0]}, {values[1]}, …, {values[-1]}"
    else:
        inside = ", ".join(map(str, values)) + (
            "," if len(values) == 1 and brackets == "()" else ""
        )
    return f"{brackets[0]}{inside}{brackets[1]}"


def at_most(lines: Sequence[str], limit: int = MAX_LINES) -> str:
    """The lines as one text; where there are too many, the last line says how many are left out."""
    if len(lines) > limit:
        lines = [*lines[: limit - 1], f"  … and {len(lines) - limit + 1} more"]
    return "\n".join(lines)


def html_table(caption: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A plain HTML table for notebooks."""

    def row(cells: Sequence[object], tag: str) -> str:
        inside = "".join(f"<{tag}>{html.escape(str(cell))}</{tag}>" for cell in cells)
        return f"<tr>{inside}</tr>"

    body = "".join(row(cells, "td") for cells in rows)
    return (
        f"<table><caption>{html.escape(caption)}</caption>"
        f"<thead>{row(header, 'th')}</thead><tbody>{body}</tbody></table>"
    )
