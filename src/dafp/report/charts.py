"""Charts as plain values, for Apache ECharts: curves and points with error bars, columns.

A colour is a name of page.css ("blue", "muted", …), so that a chart follows light, dark and print.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

COLORS = ("blue", "orange", "green", "purple", "red", "teal", "muted")
MANY = 40  # columns that can still be told apart without zoom
Point = tuple[float | None, float | None]  # x, y; None leaves a gap


@dataclass(frozen=True)
class Series:
    """Points that belong together."""

    name: str
    points: Sequence[Point]
    color: str = ""  # the next of COLORS if empty
    dash: str = "solid"  # solid, dashed, dotted
    errors: Sequence[float | None] = ()  # ± of each point
    labels: Sequence[str] = ()  # a word at each point


@dataclass(frozen=True)
class Axis:
    """What an axis shows, and how its numbers are worded: number, percent, short, seconds."""

    name: str
    wording: str = "number"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Band:
    """A named stretch of the x axis."""

    name: str
    start: float
    end: float


@dataclass(frozen=True)
class Chart:
    """What the page draws: an ECharts option, words for its numbers, and a description."""

    option: dict[str, Any]
    x: str  # wording of x
    y: str
    label: str  # what a reader who cannot see it is told
    group: str = ""  # charts of one group are hovered and zoomed together
    height: int = 300  # pixels
    bands: tuple[Band, ...] = ()
    ratio: str = ""  # what the second of two columns is of the first, e.g. "kept"


def line(
    label: str, series: Sequence[Series], *, x: Axis, y: Axis,
    bands: Sequence[Band] = (), group: str = "", zoom: bool = True,
) -> Chart:  # fmt: skip
    """Curves over a common x, with zoom; error bars where the series have them."""
    drawn = [_curve(one, COLORS[i % len(COLORS)]) for i, one in enumerate(series)]
    if bands and drawn:
        drawn.append(_bands(bands))
    option = _frame(x, y, names=[s.name for s in series], trigger="axis")
    if zoom:
        option["dataZoom"] = _zoom()
        option["grid"]["bottom"] = 44
    if bands:
        option["grid"]["top"] = 54
    option["series"] = [*drawn, *_room_for_errors(series)]
    return Chart(option, x.wording, y.wording, label, group, bands=tuple(bands))


def scatter(
    label: str, series: Sequence[Series], *, x: Axis, y: Axis, joined: bool = False
) -> Chart:
    """Points, each with its word if it has one; `joined` draws a thin line along each series."""
    drawn: list[dict[str, Any]] = []
    for i, one in enumerate(series):
        words = _padded(one.labels, len(one.points), "")
        points = _curve(one, COLORS[i % len(COLORS)])
        points |= {
            "type": "line", "symbol": "circle", "symbolSize": 11, "showSymbol": True,
            "lineStyle": {"width": 1.2 if joined else 0, "type": one.dash},
            "data": [
                {"value": value, "name": word, "label": {"show": bool(word)}}
                for value, word in zip(points["data"], words, strict=True)
            ],
            "label": {"position": "top", "formatter": "{b}", "color": "@ink", "fontSize": 12},
            "labelLayout": {"moveOverlap": "shiftY"},
        }  # fmt: skip
        drawn.append(points)
    option = _frame(x, y, names=[s.name for s in series], trigger="item")
    option["yAxis"]["boundaryGap"] = option["xAxis"]["boundaryGap"] = ["8%", "12%"]
    option["xAxis"]["splitNumber"] = 4  # few enough for a phone
    option["grid"]["right"] = 24
    option["series"] = [*drawn, *_room_for_errors(series)]
    return Chart(option, x.wording, y.wording, label, height=320)


def bar(
    label: str, categories: Sequence[str], series: Sequence[Series], *, y: Axis,
    overlaid: bool = False, ratio: str = "",
) -> Chart:  # fmt: skip
    """Columns per category (x of the points is not used), side by side or overlaid.

    Columns have no error bars: curves and points show them better.
    """
    option = _frame(Axis(""), y, names=[s.name for s in series], trigger="axis")
    option["tooltip"]["axisPointer"] = {"type": "shadow", "shadowStyle": {"color": "@hover"}}
    wide = sum(len(name) + 2 for name in categories)
    option["xAxis"] = {
        "type": "category", "data": list(categories), "axisTick": {"show": False},
        "axisLine": {"lineStyle": {"color": "@line"}},
        "axisLabel": {"color": "@muted", "rotate": 45 if wide > 80 else 0,
                      "fontSize": 11, "hideOverlap": True, "width": 110, "overflow": "truncate"},
    }  # fmt: skip
    option["grid"]["bottom"] = 12
    if len(categories) > MANY:
        option["dataZoom"] = _zoom()
        option["grid"]["bottom"] = 40
    option["series"] = [
        {
            "type": "bar", "name": one.name, "data": [value for _, value in one.points],
            "itemStyle": {"color": f"@{one.color or COLORS[i % len(COLORS)]}",
                          "borderRadius": [2, 2, 0, 0]},
            "barCategoryGap": "28%", "barMaxWidth": 34, "emphasis": {"disabled": True},
            **({"barGap": "-100%", "z": 2 + i} if overlaid else {}),
        }
        for i, one in enumerate(series)
    ]  # fmt: skip
    return Chart(option, "text", y.wording, label, height=320, ratio=ratio)


def _frame(x: Axis, y: Axis, *, names: Sequence[str], trigger: str) -> dict[str, Any]:
    """What all charts share: grid, axes, legend, tooltip."""
    return {
        "animationDuration": 300,
        "aria": {"enabled": False},  # the page says it, in the reader's words
        "textStyle": {"fontFamily": "inherit"},
        "grid": {"left": 8, "right": 18, "top": 40, "bottom": 20, "containLabel": True},
        "legend": {
            "show": len(names) > 1, "data": list(names), "top": 0, "left": 0, "type": "scroll",
            "itemWidth": 18, "itemHeight": 9, "itemGap": 16, "textStyle": {"color": "@ink"},
            "inactiveColor": "@line", "pageTextStyle": {"color": "@muted"},
            "pageIconColor": "@muted", "pageIconInactiveColor": "@line",
        },
        "tooltip": {
            "trigger": trigger, "confine": True, "backgroundColor": "@card",
            "borderColor": "@line", "textStyle": {"color": "@ink", "fontSize": 13},
            "axisPointer": {"type": "line", "lineStyle": {"color": "@muted", "type": "dashed"}},
        },
        "xAxis": _axis(x, {
            "nameLocation": "middle", "nameGap": 26, "splitLine": {"show": False}, "scale": True,
        }),
        "yAxis": _axis(y, {
            "nameLocation": "end", "nameGap": 10, "axisLine": {"show": False}, "scale": True,
            "nameTextStyle": {"align": "left", "color": "@muted"}, "splitNumber": 4,
        }),
    }  # fmt: skip


def _axis(axis: Axis, more: dict[str, Any]) -> dict[str, Any]:
    value = {
        "type": "value", "name": axis.name, "min": axis.low, "max": axis.high,
        "nameTextStyle": {"color": "@muted"}, "axisLabel": {"color": "@muted", "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": "@line"}}, "axisTick": {"show": False},
        "splitLine": {"lineStyle": {"color": "@grid"}}, **more,
    }  # fmt: skip
    return {key: part for key, part in value.items() if part is not None}


def _curve(one: Series, color: str) -> dict[str, Any]:
    shade = f"@{one.color or color}"
    values = [None, *(y for _, y in one.points), None]
    alone = any(  # a point between two gaps has no line to be seen by
        y is not None and before is None and after is None
        for before, y, after in zip(values, values[1:], values[2:], strict=False)
    )
    few = len(one.points) < 3 or alone or any(e is not None for e in one.errors)
    return {
        "type": "line", "name": one.name, "color": shade,
        "data": [[x, y, error] for (x, y), error in zip(one.points, _errors(one), strict=True)],
        "symbol": "circle", "symbolSize": 6, "showSymbol": few, "connectNulls": False,
        "lineStyle": {"width": 2, "type": one.dash}, "itemStyle": {"color": shade},
        "emphasis": {"disabled": True},
        **_error_bars(one),
    }  # fmt: skip


def _error_bars(one: Series) -> dict[str, Any]:
    """Vertical strokes from y − e to y + e, with caps; they come and go with their series."""
    pairs = [
        [{"coord": [x, y - e]}, {"coord": [x, y + e]}]
        for (x, y), e in zip(one.points, _errors(one), strict=True)
        if x is not None and y is not None and e is not None
    ]
    if not pairs:
        return {}
    stroke = {
        "silent": True, "symbol": "rect", "symbolSize": [9, 1.5], "label": {"show": False},
        "lineStyle": {"type": "solid", "width": 1.5}, "animation": False, "data": pairs,
    }  # fmt: skip
    return {"markLine": stroke}


def _room_for_errors(series: Sequence[Series]) -> list[dict[str, Any]]:
    """An axis knows the points, not the strokes: unseen points make it long enough."""
    ends = [
        [x, y + sign * error]
        for one in series
        for (x, y), error in zip(one.points, _errors(one), strict=True)
        if y is not None and error is not None
        for sign in (-1, 1)
    ]
    if not ends:
        return []
    unseen = {"type": "scatter", "name": "", "data": ends, "silent": True, "symbolSize": 0}
    return [{**unseen, "tooltip": {"show": False}}]


def _errors(one: Series) -> list[float | None]:
    return _padded(one.errors, len(one.points), None)


def _bands(bands: Sequence[Band]) -> dict[str, Any]:
    """Stretches of the x axis, every other one shaded, named at their top."""
    areas = [
        [
            {"xAxis": band.start, "name": band.name,
             "itemStyle": {"color": "@band" if i % 2 else "transparent"}},
            {"xAxis": band.end},
        ]
        for i, band in enumerate(bands)
    ]  # fmt: skip
    return {
        "type": "line", "name": "", "data": [], "silent": True, "z": 0,
        "markArea": {"silent": True, "data": areas,
                     "label": {"color": "@muted", "fontSize": 11, "position": "top"}},
    }  # fmt: skip


def _zoom() -> list[dict[str, Any]]:
    """A slim slider; the wheel only with Ctrl, so that the page can be scrolled over a chart."""
    return [
        {"type": "inside", "zoomOnMouseWheel": "ctrl", "moveOnMouseMove": False,
         "moveOnMouseWheel": False, "preventDefaultMouseMove": False},
        {"type": "slider", "height": 14, "bottom": 4, "left": 48, "right": 24, "brushSelect": False,
         "showDetail": False, "showDataShadow": False, "moveHandleSize": 0, "handleSize": "130%",
         "borderColor": "transparent", "backgroundColor": "@grid", "fillerColor": "@filler",
         "handleStyle": {"color": "@card", "borderColor": "@muted"}},
    ]  # fmt: skip


def _padded(values: Sequence[Any], size: int, rest: Any) -> list[Any]:
    return [*values[:size], *[rest] * (size - len(values))]
