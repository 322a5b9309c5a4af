"""Writes tables into the pages of docs/, between markers; all other text is written by hand."""

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"


def fill(page: str, name: str, lines: Sequence[str]) -> None:
    """Replace the lines between `<!-- name -->` and `<!-- end of name -->` of a page in docs/."""
    path, begin, end = DOCS / page, f"<!-- {name} -->", f"<!-- end of {name} -->"
    before, _, rest = path.read_text().partition(begin)
    _, closed, after = rest.partition(end)
    assert closed, f"{path} has no markers for {name!r}"
    path.write_text("\n".join([before + begin, *lines, end + after]))
