"""The charts of a training run: curves over its epochs, widths, accuracy against cost."""

from collections.abc import Callable, Sequence
from typing import cast

from ..training.run_records import Epoch, LayerWidths, Stage
from . import formatting
from .chart_options import Axis, Band, Point, Series
from .charts import Chart, bar, line, scatter

STAGES = {"sparse": "sparse training", "finetune": "fine-tuning", "scratch": "from scratch"}
STAGE_COLORS = {"baseline": "muted", "sparse": "orange", "pruned": "red", "finetuned": "blue"}
ACCURACIES = (
    ("test", "test_accuracy", "blue", "solid"),
    ("validation", "val_accuracy", "green", "solid"),
    ("train", "train_accuracy", "muted", "dashed"),
)
NEAR = 0.15, 0.07  # shares of the axes: labels of points closer than this would overlap
LOSSES = (("train", "loss", "muted", "dashed"), ("validation", "val_loss", "green", "solid"))


def run_curves(epochs: Sequence[Epoch]) -> list[tuple[str, Chart]]:
    """Accuracy and loss over all stages, one after the other."""
    bands = stage_bands(epochs)
    starts = {row["stage"]: 0.0 for row in epochs} | _starts(epochs)
    found: list[tuple[str, Chart]] = []
    for name, fields, axis in (
        ("Accuracy", ACCURACIES, Axis("", "percent")),
        ("Loss", LOSSES, Axis("", "number")),
    ):
        series = [
            Series(label, _points(epochs, starts, field), color, dash)
            for label, field, color, dash in fields
            if any(_number(row, field) is not None for row in epochs)
        ]
        if series:
            label = f"{name} over the epochs: " + "; ".join(_ends(s, axis) for s in series)
            chart = line(
                label,
                series,
                x=_epoch_axis(bands[0].start, bands[-1].end),
                y=axis,
                bands=bands,
                group="run",
            )
            found.append((name, chart))
    return found


def sparsity_curves(epochs: Sequence[Epoch], unit: str = "") -> list[tuple[str, str, Chart]]:
    """P (a share of `unit`) against its aim and target, and the penalty λ that controls it."""
    rows = [row for row in epochs if row["sparsity"] is not None or row["penalty"] is not None]
    if not rows:
        return []
    axis = _epoch_axis(min(row["epoch"] for row in rows), max(row["epoch"] for row in rows))
    shares = Axis("", "percent", low=0)
    parts = [
        Series("P", [(r["epoch"], r["sparsity"]) for r in rows], "blue"),
        Series("aim", [(r["epoch"], r["aim"]) for r in rows], "orange", "dashed"),
        Series("target", [(r["epoch"], r["target"]) for r in rows], "muted", "dotted"),
    ]
    parts = [one for one in parts if _known(one)]
    penalty = Series("λ", [(r["epoch"], r["penalty"]) for r in rows], "purple")
    found: list[tuple[str, str, Chart]] = []
    if parts:
        label = "Sparsity P against its target: " + "; ".join(_ends(s, shares) for s in parts)
        chart = line(label, parts, x=axis, y=shares, group="sparse")
        note = f"share of the {unit} that is" if unit else "share that is"
        found.append(("Sparsity P", f"{note} unimportant", chart))
    if _known(penalty):
        label = "Penalty λ over the epochs: " + _ends(penalty, Axis(""))
        chart = line(label, [penalty], x=axis, y=Axis(""), group="sparse")
        found.append(("Penalty λ", "found by the controller", chart))
    return found


def widths_chart(layers: Sequence[LayerWidths]) -> Chart:
    """Channels of each layer before and after pruning."""
    return _before_after(layers, "Channels", lambda a: (a["before"], a["after"]))


def cost_chart(layers: Sequence[LayerWidths]) -> Chart | None:
    """Multiply-adds of each layer before and after pruning, where they are known."""
    known = [layer for layer in layers if layer["macs_before"] is not None]
    if not known:
        return None
    return _before_after(known, "Multiply-adds", lambda a: (a["macs_before"], a["macs_after"]))


def accuracy_against_cost(stages: Sequence[Stage]) -> list[tuple[str, Chart]]:
    """One point per stage, over multiply-adds and over parameters."""
    units: tuple[tuple[str, Callable[[Stage], int | None]], ...] = (
        ("multiply-adds", lambda stage: stage["macs"]),
        ("parameters", lambda stage: stage["params"]),
    )
    found: list[tuple[str, Chart]] = []
    for unit, of in units:
        known = [s for s in stages if s["accuracy"] is not None and of(s) is not None]
        if len({of(s) for s in known}) < 2:
            continue
        points: list[Point] = [(of(s), s["accuracy"]) for s in known]
        names = [formatting.stage(s["stage"]) for s in known]
        series = [
            Series(name, [point], STAGE_COLORS.get(s["stage"], ""), labels=[word])
            for s, name, point, word in zip(
                known, names, points, _words(names, points), strict=True
            )
        ]
        label = f"Accuracy against {unit}: " + "; ".join(
            f"{name} {formatting.percent(s['accuracy'])} at {formatting.short(of(s))}"
            for s, name in zip(known, names, strict=True)
        )
        x = Axis(unit, "short", low=0)
        found.append((unit, scatter(label, series, x=x, y=_accuracy_axis(points))))
    return found


def _accuracy_axis(points: Sequence[Point]) -> Axis:
    """An axis fitted by ECharts, or by us if all points are equal: ECharts would exceed 100 %."""
    values = [float(y or 0) for _, y in points]
    if max(values) > min(values):
        return Axis("", "percent")
    return Axis("", "percent", low=max(0.0, values[0] - 0.01), high=min(1.0, values[0] + 0.01))


def _words(names: Sequence[str], points: Sequence[Point]) -> list[str]:
    """A label at each point; points close to each other share one label, at the first of them."""
    across, along = ([float(p[axis] or 0) for p in points] for axis in (0, 1))
    wide, high = NEAR[0] * max(across), NEAR[1] * (max(along) - min(along))
    words: dict[int, str] = {}
    for at, name in enumerate(names):
        near = (
            other
            for other in words
            if abs(across[other] - across[at]) <= wide and abs(along[other] - along[at]) <= high
        )
        first = next(near, at)
        words[first] = f"{words[first]}, {name}" if first in words else name
    return [words.get(at, "") for at in range(len(names))]


def stage_bands(epochs: Sequence[Epoch]) -> list[Band]:
    """The range of epochs of each stage, one stage after the other."""
    bands: list[Band] = []
    at = 0
    for stage in dict.fromkeys(row["stage"] for row in epochs):
        length = max(row["epoch"] for row in epochs if row["stage"] == stage)
        bands.append(Band(_band_name(stage), at, at + length))
        at += length
    return bands


def _band_name(stage: str) -> str:
    """A stage as it is shown, with the number of its step in a run of several steps."""
    name, dash, step = stage.rpartition("-")
    if dash and step.isdigit() and name in STAGES:
        return f"{STAGES[name]}, step {step}"
    return STAGES.get(stage, stage)


def _starts(epochs: Sequence[Epoch]) -> dict[str, float]:
    stages = dict.fromkeys(row["stage"] for row in epochs)
    return {s: band.start for s, band in zip(stages, stage_bands(epochs), strict=True)}


def _points(epochs: Sequence[Epoch], starts: dict[str, float], field: str) -> list[Point]:
    """The curve of one field: stages one after the other along x, with a gap between them."""
    points: list[Point] = []
    before = epochs[0]["stage"]
    for row in epochs:
        x = starts[row["stage"]] + row["epoch"]
        if row["stage"] != before:
            points.append((x - 0.5, None))
            before = row["stage"]
        points.append((x, _number(row, field)))
    return points


def _number(row: Epoch, field: str) -> float | None:
    return cast(dict[str, float | None], row)[field]


def _before_after(
    layers: Sequence[LayerWidths],
    name: str,
    of: Callable[[LayerWidths], tuple[int | None, int | None]],
) -> Chart:
    pairs = [of(layer) for layer in layers]
    label = f"{name} per layer before and after pruning: " + "; ".join(
        f"{layer['name']} {formatting.short(old)} to {formatting.short(new)}"
        for layer, (old, new) in zip(layers, pairs, strict=True)
    )
    series = [
        Series("before", [(None, old) for old, _ in pairs], "before"),
        Series("after", [(None, new) for _, new in pairs], "blue"),
    ]
    names = [layer["name"] for layer in layers]
    return bar(label, names, series, y=Axis("", "short"), overlaid=True, ratio="kept")


def _epoch_axis(low: float, high: float) -> Axis:
    return Axis("epoch", "number", low=low, high=high if high > low else None)


def _known(one: Series) -> bool:
    return any(y is not None for _, y in one.points)


def _ends(one: Series, axis: Axis) -> str:
    """A curve in words: where it begins and where it ends."""
    say = formatting.percent if axis.wording == "percent" else formatting.number
    values = [y for _, y in one.points if y is not None]
    return f"{one.name} from {say(values[0])} to {say(values[-1])}"
