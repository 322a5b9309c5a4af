"""One self-contained HTML page of sections: headings, tiles, tables, charts. It loads nothing."""

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from string import Template
from typing import Any, NewType

from .charts import Chart

Html = NewType("Html", str)  # escaped text, safe in the page


@dataclass(frozen=True)
class Section:
    """A part of a page. Without a title it has no heading."""

    title: str
    blocks: Sequence[Html]


@dataclass(frozen=True)
class Tile:
    """A headline number."""

    name: str
    value: str
    note: str = ""
    mood: str = ""  # "good" or "bad" colours the value, "words": not a number


@dataclass(frozen=True)
class Cell:
    """A cell of a table that is more than its text."""

    text: str
    note: str = ""  # small, beside it
    share: float | None = None  # drawn as a bar before the text, 0 to 1


def page(title: str, sections: Sequence[Section], subtitle: str = "", footer: str = "") -> str:
    """The whole page as text: style, charts and library inside, nothing to load."""
    library, script = (_inline(name) for name in ("vendor/echarts.common.min.js", "page.js"))
    return Template(_data("page.html")).substitute(
        title=escape(title),
        subtitle=paragraph(subtitle) if subtitle else "",
        hashes=" ".join(_hash(code) for code in (library, script)),
        css=_data("page.css"),
        sections="\n".join(_section(one) for one in sections),
        footer=escape(footer),
        library=library,
        script=script,
    )


def paragraph(text: str, kind: str = "") -> Html:
    """A paragraph of text; `kind` is its CSS class, e.g. "notice" or "hint"."""
    return Html(f"<p{_class(kind)}>{escape(text)}</p>")


def tiles(items: Sequence[Tile]) -> Html:
    """Headline numbers in a row."""
    inner = "".join(
        f'<div class="tile"><dt>{escape(t.name)}</dt>'
        f'<dd><div class="{escape(f"value {t.mood}".strip())}">{escape(t.value)}</div>'
        f'<div class="note">{escape(t.note)}</div></dd></div>'
        for t in items
    )
    return Html(f'<dl class="tiles">{inner}</dl>')


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str | Cell]],
    *,
    left: int = 1,
    strong: Sequence[int] = (),
) -> Html:
    """A table: the first `left` columns are text, the others numbers; rows `strong` are bold."""
    sides = ["" if i < left else "right" for i in range(len(head))]
    top = "".join(
        f'<th scope="col"{_class(side)}>{escape(name)}</th>'
        for name, side in zip(head, sides, strict=True)
    )
    full = [[Cell(c) if isinstance(c, str) else c for c in row] for row in rows]
    noted = [any(row[i].note for row in full) for i in range(len(head))]
    body = "".join(
        f"<tr{_class('strong' if at in strong else '')}>{_row(row, sides, noted)}</tr>"
        for at, row in enumerate(full)
    )
    return Html(
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{top}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
    )


def figure(chart: Chart, caption: str, note: str = "") -> Html:
    """A chart with its caption."""
    spec = {
        "option": chart.option,
        "x": chart.x,
        "y": chart.y,
        "group": chart.group,
        "height": chart.height,
        "bands": [vars(band) for band in chart.bands],
        "ratio": chart.ratio,
    }
    small = f"<small>{escape(note)}</small>" if note else ""
    return Html(
        f"<figure><figcaption>{escape(caption)}{small}</figcaption>"
        f'<div class="plot" role="img" aria-label="{escape(chart.label)}"></div>'
        f'<script type="application/json">{safe_json(spec)}</script></figure>'
    )


def columns(*blocks: Html) -> Html:
    """Blocks side by side where the screen is wide enough."""
    return Html(f'<div class="columns">{"".join(blocks)}</div>')


def details(summary: str, *blocks: Html) -> Html:
    """Blocks that are hidden until the reader opens them."""
    return Html(f"<details><summary>{escape(summary)}</summary>{''.join(blocks)}</details>")


def verbatim(text: str) -> Html:
    """Preformatted text."""
    return Html(f'<pre tabindex="0">{escape(text)}</pre>')


def safe_json(value: Mapping[str, Any]) -> str:
    """JSON that is safe inside <script>: nothing in it can end the element."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _section(one: Section) -> str:
    heading = f"<h2>{escape(one.title)}</h2>" if one.title else ""
    return f"<section>{heading}{''.join(one.blocks)}</section>"


def _row(cells: Sequence[Cell], sides: Sequence[str], noted: Sequence[bool]) -> str:
    first, *rest = (_inside(cell, note) for cell, note in zip(cells, noted, strict=True))
    others = "".join(
        f"<td{_class(side)}>{inner}</td>" for inner, side in zip(rest, sides[1:], strict=True)
    )
    return f'<th scope="row">{first}</th>{others}'


def _inside(cell: Cell, noted: bool) -> str:
    """A cell's bar, text and note; if only others in its column have a note, an empty one."""
    text = escape(cell.text)
    if cell.share is not None:
        width = 100 * min(1.0, max(0.0, cell.share))
        text = f'<span class="share"><i style="width:{width:.1f}%"></i></span><span>{text}</span>'
    return text + (f"<small>{escape(cell.note)}</small>" if noted else "")


def _class(name: str) -> str:
    return f' class="{escape(name)}"' if name else ""


def _data(name: str) -> str:
    return (files(__package__) / name).read_text(encoding="utf-8")


def _inline(name: str) -> str:
    """A script that is safe inside <script>: in a JavaScript string, <\\/script means the same."""
    return _data(name).replace("</script", "<\\/script")


def _hash(code: str) -> str:
    """The hash by which the page's Content-Security-Policy allows this script, and no other."""
    digest = hashlib.sha256(code.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
