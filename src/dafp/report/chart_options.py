"""Parts of an ECharts option: axes, curves, error bars, shaded bands, zoom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

Point = tuple[float | None, float | None]  # x, y; None leaves a gap


@dataclass(frozen=True)
class Series:
    """Points that belong together."""

    name: str
    points: Sequence[Point]
    color: str = ""  # the next of COLORS if empty
    dash: str = "solid"  # solid, dashed, dotted
    errors: Sequence[float | None] = ()  # ± of each point
    labels: Sequence[str] = ()  # a text at each point


@dataclass(frozen=True)
class Axis:
    """What an axis shows, and how its numbers are worded: number, percent, short, seconds."""

    name: str
    wording: str = "number"
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Band:
    """A named range of the x axis."""

    name: str
    start: float
    end: float


def frame_options(x: Axis, y: Axis, *, names: Sequence[str], trigger: str) -> dict[str, Any]:
    """What all charts share: grid, axes, legend, tooltip."""
    return {
        "animationDuration": 300,
        "aria": {"enabled": False},  # the page has its own description
        "textStyle": {"fontFamily": "inherit"},
        "grid": {"left": 8, "right": 18, "top": 40, "bottom": 20, "containLabel": True},
        "legend": {
            "show": len(names) > 1,
            "data": list(names),
            "top": 0,
            "left": 0,
            "type": "scroll",
            "itemWidth": 18,
            "itemHeight": 9,
            "itemGap": 16,
            "textStyle": {"color": "@ink"},
            "inactiveColor": "@line",
            "pageTextStyle": {"color": "@muted"},
            "pageIconColor": "@muted",
            "pageIconInactiveColor": "@line",
        },
        "tooltip": {
            "trigger": trigger,
            "confine": True,
            "backgroundColor": "@card",
            "borderColor": "@line",
            "textStyle": {"color": "@ink", "fontSize": 13},
            "axisPointer": {"type": "line", "lineStyle": {"color": "@muted", "type": "dashed"}},
        },
        "xAxis": _axis(
            x,
            {
                "nameLocation": "middle",
                "nameGap": 26,
                "splitLine": {"show": False},
                "scale": True,
            },
        ),
        "yAxis": _axis(
            y,
            {
                "nameLocation": "end",
                "nameGap": 10,
                "axisLine": {"show": False},
                "scale": True,
                "nameTextStyle": {"align": "left", "color": "@muted"},
                "splitNumber": 4,
            },
        ),
    }


def _axis(axis: Axis, more: dict[str, Any]) -> dict[str, Any]:
    value = {
        "type": "value",
        "name": axis.name,
        "min": axis.low,
        "max": axis.high,
        "nameTextStyle": {"color": "@muted"},
        "axisLabel": {"color": "@muted", "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": "@line"}},
        "axisTick": {"show": False},
        "splitLine": {"lineStyle": {"color": "@grid"}},
        **more,
    }
    return {key: part for key, part in value.items() if part is not None}


def curve_options(one: Series, color: str) -> dict[str, Any]:
    shade = f"@{one.color or color}"
    values = [None, *(y for _, y in one.points), None]
    alone = any(  # a point between two gaps has no line: only a symbol shows it
        y is not None and before is None and after is None
        for before, y, after in zip(values, values[1:], values[2:], strict=False)
    )
    few = len(one.points) < 3 or alone or any(e is not None for e in one.errors)
    return {
        "type": "line",
        "name": one.name,
        "color": shade,
        "data": [[x, y, error] for (x, y), error in zip(one.points, _errors(one), strict=True)],
        "symbol": "circle",
        "symbolSize": 6,
        "showSymbol": few,
        "connectNulls": False,
        "lineStyle": {"width": 2, "type": one.dash},
        "itemStyle": {"color": shade},
        "emphasis": {"disabled": True},
        **_error_bars(one),
    }


def _error_bars(one: Series) -> dict[str, Any]:
    """Vertical lines from y − e to y + e, with caps; shown and hidden with their series."""
    pairs = [
        [{"coord": [x, y - e]}, {"coord": [x, y + e]}]
        for (x, y), e in zip(one.points, _errors(one), strict=True)
        if x is not None and y is not None and e is not None
    ]
    if not pairs:
        return {}
    stroke = {
        "silent": True,
        "symbol": "rect",
        "symbolSize": [9, 1.5],
        "label": {"show": False},
        "lineStyle": {"type": "solid", "width": 1.5},
        "animation": False,
        "data": pairs,
    }
    return {"markLine": stroke}


def room_for_errors(series: Sequence[Series]) -> list[dict[str, Any]]:
    """Invisible points at the ends of error bars, because ECharts fits axes to points only."""
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
    return padded(one.errors, len(one.points), None)


def band_options(bands: Sequence[Band]) -> dict[str, Any]:
    """Ranges of the x axis, every other one shaded, with their names at the top."""
    areas = [
        [
            {
                "xAxis": band.start,
                "name": band.name,
                "itemStyle": {"color": "@band" if i % 2 else "transparent"},
            },
            {"xAxis": band.end},
        ]
        for i, band in enumerate(bands)
    ]
    return {
        "type": "line",
        "name": "",
        "data": [],
        "silent": True,
        "z": 0,
        "markArea": {
            "silent": True,
            "data": areas,
            "label": {"color": "@muted", "fontSize": 11, "position": "top"},
        },
    }


def zoom_options() -> list[dict[str, Any]]:
    """Zoom by a slider, or by Ctrl and the wheel: the wheel alone scrolls the page."""
    return [
        {
            "type": "inside",
            "zoomOnMouseWheel": "ctrl",
            "moveOnMouseMove": False,
            "moveOnMouseWheel": False,
            "preventDefaultMouseMove": False,
        },
        {
            "type": "slider",
            "height": 14,
            "bottom": 4,
            "left": 48,
            "right": 24,
            "brushSelect": False,
            "showDetail": False,
            "showDataShadow": False,
            "moveHandleSize": 0,
            "handleSize": "130%",
            "borderColor": "transparent",
            "backgroundColor": "@grid",
            "fillerColor": "@filler",
            "handleStyle": {"color": "@card", "borderColor": "@muted"},
        },
    ]


def padded(values: Sequence[Any], size: int, rest: Any) -> list[Any]:
    return [*values[:size], *[rest] * (size - len(values))]
