"""Plot results of `bench`: an SVG with a bar per model and setting, whiskers for the quartiles."""

from collections.abc import Sequence
from html import escape

from .benchmark import Row

WIDTH, LABELS, BAR, GAP = 760, 210, 18, 26
COLOURS = ("#4878a8", "#e08a3c", "#5a9e6f", "#b5574f", "#8a72b0")
DOUBTFUL = "#b8b8b8"


def chart(rows: Sequence[Row]) -> str:
    """An SVG of milliseconds per batch; unreliable measurements are grey."""
    settings = list(dict.fromkeys((r.runtime, r.batch, r.threads) for r in rows))
    models = list(dict.fromkeys(r.model for r in rows))
    parts: list[str] = []
    top = 40
    for setting in settings:
        these = [r for r in rows if (r.runtime, r.batch, r.threads) == setting]
        most = max(r.timing.quartiles[1] for r in these)
        runtime, batch, threads = setting
        title = f"{runtime}, batch {batch}, {threads} thread{'s' if threads > 1 else ''}"
        parts.append(_text(10, top, title, bold=True))
        top += 8
        for row in these:
            parts += _bar(row, top, most, COLOURS[models.index(row.model) % len(COLOURS)])
            top += BAR + 4
        top += GAP
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{top}" '
        f'viewBox="0 0 {WIDTH} {top}" font-family="sans-serif" font-size="12" role="img">'
        f'<rect width="100%" height="100%" fill="white"/>'
        + _text(10, 18, "Milliseconds per batch: median and quartiles; shorter is better")
    )
    return "\n".join([head, *parts, "</svg>\n"])


def _bar(row: Row, top: float, most: float, colour: str) -> list[str]:
    space = WIDTH - LABELS - 200
    low, high = (LABELS + space * q / most for q in row.timing.quartiles)
    length = space * row.timing.median / most
    middle = top + BAR / 2
    label = f"{row.timing.median * 1e3:.3g} ms, {row.speedup.value:.2f}×"
    label += f" (ideal {row.ideal:.2f}×)" if row.ideal else ""
    return [
        _text(20, middle + 4, row.model[-30:]),
        f'<rect x="{LABELS}" y="{top}" width="{length:.1f}" height="{BAR}" '
        f'fill="{DOUBTFUL if row.doubt else colour}"><title>{escape(row.doubt or label)}</title>'
        "</rect>",
        f'<path d="M{low:.1f} {middle}H{high:.1f}M{low:.1f} {middle - 4}v8M{high:.1f} '
        f'{middle - 4}v8" stroke="#222" fill="none"/>',
        _text(max(LABELS + length, high) + 6, middle + 4, label),
    ]


def _text(x: float, y: float, text: str, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{weight} fill="#222">{escape(text)}</text>'
