"""A heat map of layers and ratios: how much is lost when one layer alone is pruned."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from . import formatting
from .chart_options import Axis, Series
from .charts import Chart, bar

RED = "201, 69, 69"
LABELLED = 16  # layers at most, for their cells to have room for a number


@dataclass(frozen=True)
class Square:
    """A cell of a heat map."""

    value: float | str | None  # shown in the tooltip; a number is shown as a percentage
    text: str  # shown in the cell
    loss: float | None  # 0: nothing is lost, 1: everything; None: nothing was removed


def heat_chart(
    label: str, columns: Mapping[str, Sequence[Square]], ratios: Sequence[float]
) -> Chart:
    """Layers along x, ratios along y; a cell is a segment of a stacked column."""
    ends = _edges(ratios)
    series = [Series("", [(None, ends[0])] * len(columns))]  # invisible, below the first ratio
    for ratio in ratios:
        series.append(Series(f"{formatting.percent(ratio, 0)} removed", []))
    chart = bar(label, list(columns), series, y=Axis("removed", "percent", low=0, high=1))
    option = chart.option
    option["legend"]["show"] = False
    option["tooltip"]["trigger"] = "item"
    option["yAxis"] |= {"interval": 0.1, "splitLine": {"show": False}}
    for at, one in enumerate(option["series"]):
        one |= {"stack": "cells", "barCategoryGap": "4%", "silent": at == 0}
        del one["barMaxWidth"]
        one["itemStyle"] = {"color": "transparent"}
        if at:
            height = ends[at] - ends[at - 1]
            one["data"] = [
                _options(squares[at - 1], height, labelled=len(columns) <= LABELLED)
                for squares in columns.values()
            ]
    return chart


def _options(square: Square, height: float, *, labelled: bool) -> dict[str, Any]:
    # the root makes a loss of 1 % visible
    shade = 0.0 if square.loss is None else min(1.0, square.loss) ** 0.5
    return {
        "value": height,
        "shown": square.value,
        "itemStyle": {
            "color": "@grid" if square.loss is None else f"rgba({RED}, {0.03 + 0.97 * shade:.3f})",
            "borderColor": "@line",
            "borderWidth": 0.5,
        },
        "label": {
            "show": labelled,
            "formatter": square.text,
            "color": "@ink",
            "fontSize": 11,
        },
    }


def _edges(ratios: Sequence[float]) -> list[float]:
    """The boundaries of the cells, so that each has its ratio in the middle."""
    inner = [(a + b) / 2 for a, b in pairwise(ratios)]
    return [2 * ratios[0] - inner[0], *inner, 2 * ratios[-1] - inner[-1]]
