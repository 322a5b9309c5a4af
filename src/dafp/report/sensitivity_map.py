"""The heat map of layer sensitivity: in a run's page, and as a page of its own."""

from pathlib import Path

from ..errors import FileError
from ..recovery.sensitivity import LayerCurve, Sensitivity
from ..storage.atomic_write import write_atomically
from . import formatting
from .charts import Chart
from .heat_chart import Square, heat_chart
from .page import Cell, Html, Section, figure, page, paragraph, table

NAME = "sensitivity.json"


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
    """The loss of accuracy of each layer at each ratio; the redder, the more is lost."""

    def cell(layer: LayerCurve, at: int) -> Square:
        accuracy = layer.accuracy[at]
        if accuracy is None or not layer.removed[at]:
            return Square(accuracy, "–" if accuracy is None else f"{100 * accuracy:.0f}", None)
        share = max(0.0, found.accuracy - accuracy) / max(found.accuracy, 1e-9)
        return Square(accuracy, f"{100 * accuracy:.0f}", share)

    columns = {
        layer.name: [cell(layer, at) for at in range(len(found.ratios))] for layer in found.layers
    }
    return heat_chart(_in_words(found), columns, found.ratios)


def _in_words(found: Sensitivity) -> str:
    """Description for screen readers: each layer at the largest ratio."""
    last = formatting.percent(found.ratios[-1], 0)
    return f"Sensitivity: accuracy with {last} of one layer removed: " + "; ".join(
        f"{layer.name} {formatting.percent(layer.accuracy[-1])}" for layer in found.layers
    )
