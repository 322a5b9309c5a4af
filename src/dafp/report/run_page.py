"""The sections of a training run's page, from headline numbers to the configuration."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from ..training.run_records import LayerWidths, Stage
from . import formatting
from .page import (
    Cell,
    Html,
    Section,
    Tile,
    columns,
    details,
    figure,
    paragraph,
    table,
    tiles,
    verbatim,
)
from .run_charts import accuracy_against_cost, cost_chart, run_curves, sparsity_curves, widths_chart
from .run_files import Run
from .sensitivity_map import sensitivity_blocks
from .speed import latency_text, speed_note, speed_tile

UNITS = {
    "filters": "prunable filters",
    "params": "parameters",
    "macs": "multiply-adds",
    "latency": "multiply-adds",  # a run with a target of latency trains towards these
}
HINT = "Zoom with the handles, or with Ctrl and the wheel; a double click shows all again."


def sections_of(run: Run) -> list[Section]:
    """All sections for which the run has data."""
    found = (
        Section("", headline(run)),
        Section("Result", _summary(run)),
        Section("Training", _curves(run)),
        Section("Sparsity", _sparsity(run)),
        Section("Widths of the layers", _widths(run)),
        Section("Sensitivity", sensitivity_blocks(run.sensitivity) if run.sensitivity else []),
        Section("Configuration", _configuration(run)),
    )
    return [section for section in found if section.blocks]


def _summary(run: Run) -> list[Html]:
    """The summary table and accuracy against cost."""
    if not run.stages:
        return []
    first = run.stages[0]
    pair = compared(run.stages)
    head = ["", "accuracy", "filters", "parameters", "multiply-adds", "latency"]
    best = any(stage["best_val_test_accuracy"] is not None for stage in run.stages)
    rows = [_summary_row(stage, first, best) for stage in run.stages]
    strong = [run.stages.index(pair[1])] if pair else []
    head += ["by best validation"] if best else []
    blocks = [table("Before and after", head, rows, strong=strong)]
    charts = accuracy_against_cost(run.stages)
    if charts:
        blocks.append(columns(*(figure(c, f"Accuracy against {unit}") for unit, c in charts)))
    return blocks


def _summary_row(stage: Stage, first: Stage, best: bool) -> list[str | Cell]:
    step = "" if stage is first else formatting.points(stage["accuracy"], first["accuracy"])
    row: list[str | Cell] = [
        formatting.stage(stage["stage"]),
        Cell(formatting.percent(stage["accuracy"], 2), step),
    ]
    for say, new, old in (
        (formatting.count, stage["filters"], first["filters"]),
        (formatting.count, stage["params"], first["params"]),
        (formatting.short, stage["macs"], first["macs"]),
    ):
        text = say(new)
        row.append(Cell(text, _unless_same(formatting.change, new, old)))
    row.append(Cell(latency_text(stage), speed_note(stage, first)))
    if best:
        at = f"epoch {stage['best_val_epoch']}" if stage["best_val_epoch"] is not None else ""
        row.append(Cell(formatting.percent(stage["best_val_test_accuracy"], 2), at))
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
            row["stage"],
            str(row["epoch"]),
            formatting.number(row["lr"]),
            formatting.number(row["loss"]),
            formatting.percent(row["train_accuracy"]),
            formatting.percent(row["val_accuracy"]),
            formatting.percent(row["test_accuracy"]),
            formatting.number(row["penalty"]),
            formatting.percent(row["sparsity"]),
            formatting.number(row["epoch_s"]),
        ]
        for row in run.epochs
    ]
    return [*blocks, details("Numbers of every epoch", table("Epochs", names, rows))]


def _sparsity(run: Run) -> list[Html]:
    blocks: list[Html] = []
    end = run.sparsity
    if end is not None and end["reached"] is not None:
        text = f"Sparse training reached P = {formatting.percent(end['reached'])}"
        if end["target"] is not None:
            gap = formatting.points(end["reached"], end["target"])
            text += f", {gap} points from its target of {formatting.percent(end['target'])}"
            text += f" of the {UNITS[end['unit']]}" if end["unit"] in UNITS else ""
        if end["p"] is not None:
            text += f" (judged at p = {formatting.number(end['p'])})"
        text += "."
        if end["found_p"] is not None:
            text += f" Pruned at p = {formatting.number(end['found_p'])}."
        if end["removed"] is not None:
            text += f" Pruning removed {formatting.percent(end['removed'])} of the prunable filters"
            text += (
                f", {formatting.percent(end['of_all_filters'])} of all filters."
                if end["of_all_filters"] is not None
                else "."
            )
        if end["forced"]:
            text += " Sparse training ended short of the target: pruning removed channels in use."
        blocks.append(paragraph(text))
    charts = sparsity_curves(run.epochs, _unit(run))
    if charts:
        blocks.append(columns(*(figure(chart, caption, note) for caption, note, chart in charts)))
    return blocks


def _unit(run: Run) -> str:
    """What P is a share of."""
    return UNITS.get(str(run.config.get("unit")), "")


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


def _layer_row(layer: LayerWidths) -> list[str | Cell]:
    kept = (
        layer["after"] / layer["before"] if layer["before"] and layer["after"] is not None else None
    )
    costs = (
        (layer["params_before"], layer["params_after"]),
        (layer["macs_before"], layer["macs_after"]),
    )
    return [
        layer["name"],
        layer["kind"],
        formatting.count(layer["before"]),
        formatting.count(layer["after"]),
        Cell(formatting.percent(kept, 0), share=kept),
        *(
            Cell(formatting.short(new), _unless_same(formatting.change, new, old))
            for old, new in costs
        ),
    ]


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


def title_of(run: Run) -> str:
    """Model and data set; the name of the directory if they are not known yet."""
    model, data = run.about.get("model"), run.about.get("data")
    if model is None:
        model, data = run.config.get("model"), run.config.get("data")
    if not model:
        return run.path.resolve().name
    return f"{model} on {data}" if data else model


def subtitle_of(run: Run) -> str:
    """Method, seed and state of the run in one line."""
    parts = [f"method {run.about['method']}"] if "method" in run.about else []
    parts += [f"seed {run.about['seed']}"] if "seed" in run.about else []
    trained = sum(row["epoch_s"] or 0 for row in run.epochs)
    parts += [
        f"{len(run.epochs)} epochs" + (f" in {formatting.seconds(trained)}" if trained else "")
    ]
    return " · ".join([*parts, "finished" if run.finished else "not finished"])


def compared(stages: tuple[Stage, ...]) -> tuple[Stage, Stage] | None:
    """The first and the last stage; None if there are fewer than two."""
    return (stages[0], stages[-1]) if len(stages) > 1 else None


def headline(run: Run) -> list[Html]:
    """Notices about the state of the run and its files, and the headline numbers."""
    blocks: list[Html] = []
    if not run.finished:
        blocks.append(paragraph(_state(run), "notice"))
    blocks += [paragraph(note, "notice") for note in run.notes]
    pair = compared(run.stages)
    shown = _result_tiles(*pair) if pair else _live_tiles(run)
    return [*blocks, tiles(shown)] if shown else blocks


def _state(run: Run) -> str:
    if not run.epochs:
        return "This run is not finished: no epoch is done yet."
    last = run.epochs[-1]
    of = f" of {last['epochs']}" if last["epochs"] else ""
    return (
        f"This run is not finished: epoch {last['epoch']}{of} of stage {last['stage']!r} is the "
        "last one written. The page shows what there is."
    )


def _result_tiles(first: Stage, last: Stage) -> list[Tile]:
    found: list[Tile] = []
    if last["accuracy"] is not None:
        step = formatting.points(last["accuracy"], first["accuracy"])
        found.append(
            Tile(
                "Accuracy",
                formatting.percent(last["accuracy"]),
                f"{step} points against {first['stage']}",
            )
        )
    amounts = (
        ("Filters", first["filters"], last["filters"]),
        ("Multiply-adds", first["macs"], last["macs"]),
        ("Parameters", first["params"], last["params"]),
    )
    for name, old, new in amounts:
        if old and new is not None:
            note = f"{formatting.short(old)} → {formatting.short(new)}"
            found.append(Tile(name, formatting.change(new, old), note, "good" if new < old else ""))
    if first["latency_s"] and last["latency_s"]:
        found.append(speed_tile(first, last))
    return found


def _live_tiles(run: Run) -> list[Tile]:
    """Headline numbers of a run that is not finished."""
    if not run.epochs:
        return []
    last = run.epochs[-1]
    accuracy = next(
        (
            a
            for a in (last["test_accuracy"], last["val_accuracy"], last["train_accuracy"])
            if a is not None
        ),
        None,
    )
    found = [
        Tile("Epoch", f"{last['epoch']}", f"of {last['epochs'] or '?'} in stage {last['stage']}")
    ]
    if accuracy is not None:
        found.append(Tile("Accuracy", formatting.percent(accuracy), "at the last epoch"))
    if last["loss"] is not None:
        found.append(Tile("Loss", formatting.number(last["loss"], 3), "in training"))
    if last["sparsity"] is not None:
        note = f"aim {formatting.percent(last['aim'])}, target {formatting.percent(last['target'])}"
        unit = _unit(run)
        note = f"of the {unit}, {note}" if unit else note
        found.append(Tile("Sparsity P", formatting.percent(last["sparsity"]), note))
    return found


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """(name, text) of every setting; settings in nested tables have dotted names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            yield f"{prefix}{name}", "yes" if value else "no"
        else:
            yield f"{prefix}{name}", str(value)
