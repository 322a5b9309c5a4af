"""The head of a training run's page: title, state of the run, headline numbers."""

from collections.abc import Iterator, Mapping
from typing import Any

from ..training.run_records import Stage
from . import formatting
from .page import Html, Tile, paragraph, tiles
from .run_files import Run


def title_of(run: Run) -> str:
    """What was trained on what; the directory's name if the run does not say it yet."""
    model, data = run.about.get("model"), run.about.get("data")
    if model is None:
        model, data = _search(run.config, "model"), _search(run.config, "data")
    if not model:
        return run.path.resolve().name
    return f"{model} on {data}" if data else model


def subtitle_of(run: Run) -> str:
    """Method, seed and state of the run in one line."""
    parts = [f"method {run.about['method']}"] if "method" in run.about else []
    parts += [f"seed {run.about['seed']}"] if "seed" in run.about else []
    trained = sum(row.epoch_s or 0 for row in run.epochs)
    parts += [
        f"{len(run.epochs)} epochs" + (f" in {formatting.seconds(trained)}" if trained else "")
    ]
    return " · ".join([*parts, "finished" if run.finished else "not finished"])


def compared(stages: tuple[Stage, ...]) -> tuple[Stage, Stage] | None:
    """First and final network."""
    return (stages[0], stages[-1]) if len(stages) > 1 else None


def headline(run: Run) -> list[Html]:
    """What state the run is in, and its numbers in large."""
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
    of = f" of {last.epochs}" if last.epochs else ""
    return (
        f"This run is not finished: epoch {last.epoch}{of} of stage {last.stage!r} is the last "
        "one written. The page shows what there is."
    )


def _result_tiles(first: Stage, last: Stage) -> list[Tile]:
    found: list[Tile] = []
    if last.accuracy is not None:
        step = formatting.points(last.accuracy, first.accuracy)
        found.append(
            Tile(
                "Accuracy",
                formatting.percent(last.accuracy),
                f"{step} points against {first.stage}",
            )
        )
    amounts = (
        ("Filters", first.filters, last.filters),
        ("Multiply-adds", first.macs, last.macs),
        ("Parameters", first.params, last.params),
    )
    for name, old, new in amounts:
        if old and new is not None:
            note = f"{formatting.short(old)} → {formatting.short(new)}"
            found.append(Tile(name, formatting.change(new, old), note, "good" if new < old else ""))
    if first.latency_s and last.latency_s:
        note = f"{formatting.seconds(first.latency_s)} → {formatting.seconds(last.latency_s)}"
        mood = "good" if last.latency_s < first.latency_s else "bad"
        found.append(Tile("Speed", formatting.speedup(last.latency_s, first.latency_s), note, mood))
    return found


def _live_tiles(run: Run) -> list[Tile]:
    """What can be said of a run that is not at its end."""
    if not run.epochs:
        return []
    last = run.epochs[-1]
    accuracy = next(
        (a for a in (last.test_accuracy, last.val_accuracy, last.train_accuracy) if a is not None),
        None,
    )
    found = [Tile("Epoch", f"{last.epoch}", f"of {last.epochs or '?'} in stage {last.stage}")]
    if accuracy is not None:
        found.append(Tile("Accuracy", formatting.percent(accuracy), "at the last epoch"))
    if last.loss is not None:
        found.append(Tile("Loss", formatting.number(last.loss, 3), "in training"))
    if last.sparsity is not None:
        note = f"aim {formatting.percent(last.aim)}, target {formatting.percent(last.target)}"
        found.append(Tile("Sparsity P", formatting.percent(last.sparsity), note))
    return found


def flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested tables as dotted names."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, bool):
            yield f"{prefix}{name}", "yes" if value else "no"
        else:
            yield f"{prefix}{name}", str(value)


def _search(config: Mapping[str, Any], name: str) -> str | None:
    """A setting by the last part of its name, wherever it stands; `model.name` for a table."""
    settings = dict(flat(config))
    for key in (name, f"{name}.name"):
        for full, value in settings.items():
            if full == key or full.endswith(f".{key}"):
                return value
    return None
