"""Charts as plain values, for Apache ECharts: curves and points with error bars, columns.

A colour is a name of page.css ("blue", "muted", …), so that a chart follows light, dark and print.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .chart_options import (
    Axis,
    Band,
    Series,
    band_options,
    curve_options,
    frame_options,
    padded,
    room_for_errors,
    zoom_options,
)

COLORS = ("blue", "orange", "green", "purple", "red", "teal", "muted")
MANY = 40  # columns that are legible without zoom


@dataclass(frozen=True)
class Chart:
    """What the page draws: an ECharts option, formats of its numbers, and a description."""

    option: dict[str, Any]
    x: str  # wording of x
    y: str
    label: str  # description for screen readers
    group: str = ""  # charts of one group are hovered and zoomed together
    height: int = 300  # pixels
    bands: tuple[Band, ...] = ()
    ratio: str = ""  # name of second column / first column in the tooltip, e.g. "kept"


def line(
    label: str,
    series: Sequence[Series],
    *,
    x: Axis,
    y: Axis,
    bands: Sequence[Band] = (),
    group: str = "",
    zoom: bool = True,
) -> Chart:
    """Curves over a common x, with zoom; error bars where the series have them."""
    drawn = [curve_options(one, COLORS[i % len(COLORS)]) for i, one in enumerate(series)]
    if bands and drawn:
        drawn.append(band_options(bands))
    option = frame_options(x, y, names=[s.name for s in series], trigger="axis")
    if zoom:
        option["dataZoom"] = zoom_options()
        option["grid"]["bottom"] = 44
    if bands:
        option["grid"]["top"] = 54
    option["series"] = [*drawn, *room_for_errors(series)]
    return Chart(option, x.wording, y.wording, label, group, bands=tuple(bands))


def scatter(
    label: str, series: Sequence[Series], *, x: Axis, y: Axis, joined: bool = False
) -> Chart:
    """Points, each with its label if it has one; `joined` draws a thin line along each series."""
    drawn: list[dict[str, Any]] = []
    for i, one in enumerate(series):
        words = padded(one.labels, len(one.points), "")
        points = curve_options(one, COLORS[i % len(COLORS)])
        points |= {
            "type": "line",
            "symbol": "circle",
            "symbolSize": 11,
            "showSymbol": True,
            "lineStyle": {"width": 1.2 if joined else 0, "type": one.dash},
            "data": [
                {"value": value, "name": word, "label": {"show": bool(word)}}
                for value, word in zip(points["data"], words, strict=True)
            ],
            "label": {"position": "top", "formatter": "{b}", "color": "@ink", "fontSize": 12},
            "labelLayout": {"moveOverlap": "shiftY"},
        }
        drawn.append(points)
    option = frame_options(x, y, names=[s.name for s in series], trigger="item")
    option["yAxis"]["boundaryGap"] = option["xAxis"]["boundaryGap"] = ["8%", "12%"]
    option["xAxis"]["splitNumber"] = 4  # few enough for a phone
    option["grid"]["right"] = 24
    option["series"] = [*drawn, *room_for_errors(series)]
    return Chart(option, x.wording, y.wording, label, height=320)


def bar(
    label: str,
    categories: Sequence[str],
    series: Sequence[Series],
    *,
    y: Axis,
    overlaid: bool = False,
    ratio: str = "",
) -> Chart:
    """Columns per category (x of the points is not used), side by side or overlaid.

    Columns have no error bars: curves and points show them better.
    """
    option = frame_options(Axis(""), y, names=[s.name for s in series], trigger="axis")
    option["tooltip"]["axisPointer"] = {"type": "shadow", "shadowStyle": {"color": "@hover"}}
    wide = sum(len(name) + 2 for name in categories)
    option["xAxis"] = {
        "type": "category",
        "data": list(categories),
        "axisTick": {"show": False},
        "axisLine": {"lineStyle": {"color": "@line"}},
        "axisLabel": {
            "color": "@muted",
            "rotate": 45 if wide > 80 else 0,
            "fontSize": 11,
            "hideOverlap": True,
            "width": 110,
            "overflow": "truncate",
        },
    }
    option["grid"]["bottom"] = 12
    option["yAxis"]["scale"] = False  # columns begin at 0, so that their heights can be compared
    if len(categories) > MANY:
        option["dataZoom"] = zoom_options()
        option["grid"]["bottom"] = 40
    option["series"] = [
        {
            "type": "bar",
            "name": one.name,
            "data": [value for _, value in one.points],
            "itemStyle": {
                "color": f"@{one.color or COLORS[i % len(COLORS)]}",
                "borderRadius": [2, 2, 0, 0],
            },
            "barCategoryGap": "28%",
            "barMaxWidth": 34,
            "emphasis": {"disabled": True},
            **({"barGap": "-100%", "z": 2 + i} if overlaid else {}),
        }
        for i, one in enumerate(series)
    ]
    return Chart(option, "text", y.wording, label, height=320, ratio=ratio)
