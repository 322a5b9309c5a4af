"""The records of a run's files, read from JSON with every field checked by its type."""

import dataclasses
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..errors import FileError


@dataclass(frozen=True)
class Epoch:
    """One line of metrics.jsonl; what was not measured is None. Accuracies are shares."""

    stage: str
    epoch: int  # from 1, within its stage
    epochs: int | None = None  # planned for the stage
    lr: float | None = None
    loss: float | None = None
    train_accuracy: float | None = None
    val_accuracy: float | None = None
    test_accuracy: float | None = None
    val_loss: float | None = None
    images: int | None = None
    epoch_s: float | None = None  # seconds
    penalty: float | None = None  # λ
    sparsity: float | None = None  # P
    target: float | None = None  # r, where P should be at the end
    aim: float | None = None  # where P should be at this epoch


@dataclass(frozen=True)
class Stage:
    """The network after a stage: how good it is and what it costs."""

    stage: str
    accuracy: float | None = None
    best_val_epoch: int | None = None
    best_val_accuracy: float | None = None
    best_val_test_accuracy: float | None = None
    filters: int | None = None  # that can be pruned
    all_filters: int | None = None
    params: int | None = None
    macs: int | None = None  # multiply-adds, batch of 1
    latency_s: float | None = None


@dataclass(frozen=True)
class LayerWidths:
    """One group of channels before and after pruning, and what it costs."""

    name: str
    kind: str = "filter"
    before: int | None = None  # channels
    after: int | None = None
    params_before: int | None = None
    params_after: int | None = None
    macs_before: int | None = None
    macs_after: int | None = None


@dataclass(frozen=True)
class Sparsity:
    """What was asked of sparse training, and what it reached."""

    target: float | None = None
    reached: float | None = None
    p: float | None = None  # channels at most p times the best of their layer count as unimportant
    removed: float | None = None  # share of the filters that can be pruned
    of_all_filters: float | None = None
    forced: bool | None = None  # whether pruning had to go beyond what training had prepared


Record = TypeVar("Record", Epoch, Stage, LayerWidths, Sparsity)


def record_of(kind: type[Record], value: Any, where: str, notes: list[str]) -> Record:
    """A record of the fields that it knows; others are for someone else."""
    if not isinstance(value, dict):
        raise FileError(f"{where} is damaged: expected an object, found {value!r}")
    found: dict[str, Any] = {}
    for part in dataclasses.fields(kind):
        required = part.default is dataclasses.MISSING
        if value.get(part.name) is None:
            if required:
                raise FileError(f"{where} is damaged: {part.name!r} is missing")
            continue
        wanted = part.type.__name__ if isinstance(part.type, type) else str(part.type)
        found[part.name] = _checked(value[part.name], wanted, f"{where}: {part.name}")
        if found[part.name] is None:
            if required:
                raise FileError(f"{where} is damaged: {part.name!r} is not a finite number")
            notes.append(f"{Path(where).name}: {part.name} is not a finite number.")
            del found[part.name]
    return kind(**found)


def _checked(value: Any, wanted: str, where: str) -> Any:
    """The value if it is of the wanted type; None stands for NaN and the infinities."""
    if "str" in wanted:
        fits = isinstance(value, str)
    elif "bool" in wanted:
        fits = isinstance(value, bool)
    else:
        fits = isinstance(value, int | float) and not isinstance(value, bool)
        if isinstance(value, float) and not math.isfinite(value):
            return None
        if fits and abs(value) > 1e18:  # nothing that is counted here is as large
            fits = False
        if fits and "int" in wanted and value != int(value):
            fits = False
    if not fits:
        raise FileError(f"{where} is {value!r}; expected {wanted.partition(' |')[0]}")
    return value
