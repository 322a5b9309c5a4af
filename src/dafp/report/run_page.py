"""The sections of a training run's page, from headline numbers to the configuration."""

from collections.abc import Callable

from ..training.run_records import Layer, Stage
from . import formatting
from .headline import compared, flat, headline
from .page import Cell, Html, Section, columns, details, figure, paragraph, table, verbatim
from .run_charts import accuracy_against_cost, cost_chart, run_curves, sparsity_curves, widths_chart
from .run_files import Run
from .sensitivity_map import sensitivity_blocks

HINT = "Zoom with the handles, or with Ctrl and the wheel; a double click shows all again."


def sections_of(run: Run) -> list[Section]:
    """All sections that the run has something for."""
    found = (
        Section("", headline(run)),
        Section("Result", _closing(run)),
        Section("Training", _curves(run)),
        Section("Sparsity", _sparsity(run)),
        Section("Widths of the layers", _widths(run)),
        Section("Sensitivity", sensitivity_blocks(run.sensitivity) if run.sensitivity else []),
        Section("Configuration", _configuration(run)),
    )
    return [section for section in found if section.blocks]


def _closing(run: Run) -> list[Html]:
    """The closing table and accuracy against cost."""
    if not run.stages:
        return []
    first = run.stages[0]
    pair = compared(run.stages)
    head = ["", "accuracy", "filters", "parameters", "multiply-adds", "latency"]
    best = any(stage.best_val_test_accuracy is not None for stage in run.stages)
    rows = [_closing_row(stage, first, best) for stage in run.stages]
    strong = [run.stages.index(pair[1])] if pair else []
    head += ["by best validation"] if best else []
    blocks = [table("Before and after", head, rows, strong=strong)]
    charts = accuracy_against_cost(run.stages)
    if charts:
        blocks.append(columns(*(figure(c, f"Accuracy against {unit}") for unit, c in charts)))
    return blocks


def _closing_row(stage: Stage, first: Stage, best: bool) -> list[str | Cell]:
    step = "" if stage is first else formatting.points(stage.accuracy, first.accuracy)
    row: list[str | Cell] = [stage.stage, Cell(formatting.percent(stage.accuracy, 2), step)]
    for name in ("filters", "params", "macs"):
        new, old = getattr(stage, name), getattr(first, name)
        text = formatting.short(new) if name == "macs" else formatting.count(new)
        row.append(Cell(text, _unless_same(formatting.change, new, old)))
    new, old = stage.latency_s, first.latency_s
    row.append(Cell(formatting.seconds(new), _unless_same(formatting.speedup, new, old)))
    if best:
        at = f"epoch {stage.best_val_epoch}" if stage.best_val_epoch is not None else ""
        row.append(Cell(formatting.percent(stage.best_val_test_accuracy, 2), at))
    return row


def _unless_same(
    say: Callable[[float | None, float | None], str], new: float | None, old: float | None
) -> str:
    return "" if new is None or old is None or new == old else say(new, old)


def _curves(run: Run) -> list[Html]:
    charts = run_curves(run.epochs)
    if not charts:
        return []
    blocks = [
        columns(*(figure(chart, caption) for caption, chart in charts)),
        paragraph(HINT, "hint"),
    ]
    names = ("stage", "epoch", "lr", "loss", "train", "validation", "test", "λ", "P", "seconds")
    rows = [
        [
            row.stage, str(row.epoch), formatting.number(row.lr), formatting.number(row.loss),
            formatting.percent(row.train_accuracy), formatting.percent(row.val_accuracy),
            formatting.percent(row.test_accuracy), formatting.number(row.penalty),
            formatting.percent(row.sparsity), formatting.number(row.epoch_s),
        ]
        for row in run.epochs
    ]  # fmt: skip
    return [*blocks, details("Numbers of every epoch", table("Epochs", names, rows))]


def _sparsity(run: Run) -> list[Html]:
    blocks: list[Html] = []
    end = run.sparsity
    if end is not None and end.reached is not None:
        text = f"Sparse training reached P = {formatting.percent(end.reached)}"
        if end.target is not None:
            gap = formatting.points(end.reached, end.target)
            text += f", {gap} points from its target of {formatting.percent(end.target)}"
        if end.p is not None:
            text += f" (judged at p = {formatting.number(end.p)})"
        text += "."
        if end.removed is not None:
            text += f" Pruning removed {formatting.percent(end.removed)} of the prunable filters"
            text += (
                f", {formatting.percent(end.of_all_filters)} of all filters."
                if end.of_all_filters is not None
                else "."
            )
        if end.forced:
            text += " Pruning had to go beyond what training had prepared."
        blocks.append(paragraph(text))
    charts = sparsity_curves(run.epochs)
    if charts:
        blocks.append(columns(*(figure(chart, caption, note) for caption, note, chart in charts)))
    return blocks


def _widths(run: Run) -> list[Html]:
    if not run.layers:
        return []
    blocks = [figure(widths_chart(run.layers), "Channels per layer", "before and after pruning")]
    chart = cost_chart(run.layers)
    if chart:
        blocks.append(figure(chart, "Multiply-adds per layer", "before and after pruning"))
    rows = [_layer_row(layer) for layer in run.layers]
    head = ("layer", "kind", "before", "after", "kept", "parameters", "multiply-adds")
    return [*blocks, table("Layers", head, rows, left=2)]


def _layer_row(layer: Layer) -> list[str | Cell]:
    kept = layer.after / layer.before if layer.before and layer.after is not None else None
    costs = ((layer.params_before, layer.params_after), (layer.macs_before, layer.macs_after))
    return [
        layer.name, layer.kind, formatting.count(layer.before), formatting.count(layer.after),
        Cell(formatting.percent(kept, 0), share=kept),
        *(Cell(formatting.short(new), _unless_same(formatting.change, new, old))
          for old, new in costs),
    ]  # fmt: skip


def _configuration(run: Run) -> list[Html]:
    blocks: list[Html] = []
    tables = [
        ("Settings", dict(flat(run.config))),
        ("Run", {k: run.about[k] for k in ("model", "data", "method", "seed") if k in run.about}),
        ("Versions", dict(run.versions)),
        ("Machine", dict(run.machine)),
    ]
    shown = [
        table(name, ("name", "value"), [list(pair) for pair in values.items()], left=2)
        for name, values in tables
        if values
    ]
    if len(shown) > 1:
        blocks.append(columns(shown[0], Html("<div>" + "".join(shown[1:]) + "</div>")))
    else:
        blocks += shown
    if run.config_text:
        blocks.append(details("config.toml, as it is", verbatim(run.config_text)))
    return blocks
