"""The heat map of layer sensitivity: in a run's page, and as a page of its own."""

from itertools import pairwise
from pathlib import Path
from typing import Any

from ..errors import FileError
from ..recovery.sensitivity import Sensitivity
from ..storage.atomic_write import write_atomically
from . import formatting
from .chart_options import Axis, Series
from .charts import Chart, bar
from .page import Cell, Html, Section, figure, page, paragraph, table

NAME = "sensitivity.json"
RED = "201, 69, 69"
LABELLED = 16  # layers at most, for their cells to have room for a number


def write_sensitivity(found: Sensitivity, out: Path) -> Path:
    """Write sensitivity.json and sensitivity.html into a directory; return the page's path."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot write into {out}: {error.strerror}") from error
    write_atomically(out / NAME, (found.to_json() + "\n").encode())
    about = found.about
    title = f"Sensitivity of {about.get('model', 'a network')} on {about.get('data', 'its data')}"
    text = page(title, [Section("", sensitivity_blocks(found))], "", "Written by dafp sensitivity.")
    write_atomically(out / "sensitivity.html", text.encode())
    return out / "sensitivity.html"


def sensitivity_blocks(found: Sensitivity) -> list[Html]:
    """An explanation, the heat map, and a table of its numbers."""
    if not found.layers:
        return []
    about = found.about
    judged = f" of {about['images']} validation images" if "images" in about else ""
    text = (
        f"Accuracy when this layer alone is pruned, by {about.get('criterion', 'its scores')}; "
        f"the network as it is has {formatting.percent(found.accuracy)}{judged}. "
        "The redder a cell, the more is lost; grey: nothing was removed there."
    )
    head = ("layer", "channels", *(f"−{formatting.percent(r, 0)}" for r in found.ratios))
    rows: list[list[str | Cell]] = [
        [layer.name, str(layer.channels), *(formatting.percent(a) for a in layer.accuracy)]
        for layer in found.layers
    ]
    return [
        paragraph(text),
        figure(heat_map(found), "Sensitivity of the layers", "share removed of one layer alone"),
        table("Accuracy when one layer is pruned", head, rows),
    ]


def heat_map(found: Sensitivity) -> Chart:
    """Layers along x, ratios along y; a cell is a segment of a stacked column."""
    ends = _edges(found.ratios)
    series = [Series("", [(None, ends[0])] * len(found.layers))]  # invisible, below the first ratio
    for ratio in found.ratios:
        series.append(Series(f"{formatting.percent(ratio, 0)} removed", []))
    chart = bar(
        _in_words(found),
        [layer.name for layer in found.layers],
        series,
        y=Axis("removed", "percent", low=0, high=1),
    )
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
                _cell(found, place, at - 1, height) for place in range(len(found.layers))
            ]
    return chart


def _cell(found: Sensitivity, place: int, at: int, height: float) -> dict[str, Any]:
    layer = found.layers[place]
    accuracy = layer.accuracy[at]
    untouched = accuracy is None or not layer.removed[at]
    lost = 0.0 if accuracy is None else max(0.0, found.accuracy - accuracy)
    share = (lost / max(found.accuracy, 1e-9)) ** 0.5  # the root makes a loss of 1 % visible
    text = "–" if accuracy is None else f"{100 * accuracy:.0f}"
    return {
        "value": height,
        "shown": accuracy,
        "itemStyle": {
            "color": "@grid" if untouched else f"rgba({RED}, {0.03 + 0.97 * share:.3f})",
            "borderColor": "@line",
            "borderWidth": 0.5,
        },
        "label": {
            "show": len(found.layers) <= LABELLED,
            "formatter": text,
            "color": "@ink",
            "fontSize": 11,
        },
    }


def _edges(ratios: tuple[float, ...]) -> list[float]:
    """The boundaries of the cells, so that each has its ratio in the middle."""
    inner = [(a + b) / 2 for a, b in pairwise(ratios)]
    return [2 * ratios[0] - inner[0], *inner, 2 * ratios[-1] - inner[-1]]


def _in_words(found: Sensitivity) -> str:
    """Description for screen readers: each layer at the largest ratio."""
    last = formatting.percent(found.ratios[-1], 0)
    return f"Sensitivity: accuracy with {last} of one layer removed: " + "; ".join(
        f"{layer.name} {formatting.percent(layer.accuracy[-1])}" for layer in found.layers
    )
