"""The schema of a run's files: rows of metrics.jsonl, and the parts of result.json.

These dicts are written as JSON with sorted keys, and read back from it.
A key may be absent: where a stage has no such number, and in files of older versions.
Accuracies, targets and P are shares, 0 to 1; fields that end in `_s` are seconds.
"""

import math
from pathlib import Path
from typing import Any, Required, TypedDict, TypeVar, cast, get_args, get_origin, get_type_hints

from ..errors import FileError


class Epoch(TypedDict, total=False):
    """One line of metrics.jsonl. None: not measured. Methods add columns of their own."""

    stage: Required[str]  # baseline, sparse, finetune or scratch; finetune-1, … if steps > 1
    epoch: Required[int]  # from 1, within its stage
    epochs: int | None  # planned for the stage
    lr: float | None
    loss: float | None  # mean over the training images
    train_accuracy: float | None  # on the augmented training images
    val_accuracy: float | None
    test_accuracy: float | None  # only in the last epoch, and where validation is the best so far
    val_loss: float | None
    images: int | None  # training images seen in the epoch
    epoch_s: float | None  # training only, without evaluation
    penalty: float | None  # λ
    sparsity: float | None  # P, a share of the target's unit (filters, params or macs)
    target: float | None  # r, the P to reach at the end
    aim: float | None  # the P to reach by this epoch


class StageSpeed(TypedDict, total=False):
    """The latency of one forward pass, batch of 1, and its ratio to that of the first stage."""

    threads: Required[int]
    latency_s: Required[float]
    speedup: Required[float]  # with its 95 % interval
    low: Required[float]
    high: Required[float]
    doubt: Required[str]  # why the machine was too busy to tell; "": it was not


class Stage(TypedDict, total=False):
    """One row of the summary table: accuracy and cost of the network after a stage."""

    stage: Required[str]  # baseline, sparse, pruned, recalibrated, finetuned, scratch-E, …
    accuracy: float | None  # on the test images, after the last epoch
    best_val_epoch: int | None  # the epoch with the best validation accuracy
    best_val_accuracy: float | None
    best_val_test_accuracy: float | None  # on the test images, at that epoch
    filters: int | None  # that can be pruned
    all_filters: int | None
    params: int | None  # weights and biases
    macs: int | None  # multiply-adds of one forward pass, batch of 1
    latency_s: float | None  # of one forward pass, batch of 1, on one thread
    speeds: list[StageSpeed]  # on one thread and on all


class LayerWidths(TypedDict, total=False):
    """One group of channels before and after pruning, and the cost of its layer."""

    name: Required[str]
    kind: str  # "filter" or "selection"
    before: int | None  # channels
    after: int | None
    params_before: int | None  # of the group's producer, or of a selection group's consumer
    params_after: int | None
    macs_before: int | None
    macs_after: int | None


class Sparsity(TypedDict, total=False):
    """The target of a run, and what was reached."""

    target: float | None  # share of the unit to remove
    unit: str | None  # filters, params or macs
    reached: float | None  # P after sparse training, in that unit
    p: float | None  # a channel is unimportant if its score is at most p · the largest of its group
    found_p: float | None  # the p at which the plan was made; absent: not by a threshold
    removed: float | None  # share of the filters that can be pruned
    of_all_filters: float | None
    forced: bool | None  # whether sparse training ended more than 0.02 short of the target


class LatencyResult(TypedDict, total=False):
    """The measurement that confirms the plan of a run with a target of latency."""

    share: Required[float]  # of the latency, to remove
    removed: Required[float]  # of the latency, measured
    runtime: Required[str]
    batch: Required[int]
    threads: Required[int]
    before_s: Required[float]
    after_s: Required[float]
    speedup: Required[float]
    speedup_95: list[float]  # its interval
    round_to: Required[int]  # widths are multiples of it
    attempts: Required[int]  # plans that were measured
    points_measured: int
    doubt: Required[str]  # why the machine was too busy to tell; "": it was not


class RunResult(TypedDict, total=False):
    """result.json, written when a run is finished."""

    model: str
    data: str
    method: str
    seed: int
    stages: list[Stage]
    sparsity: Sparsity
    latency: LatencyResult  # only with a target of latency
    layers: list[LayerWidths]
    collapsed: str  # the layer that lost all its filters; such a run has no `layers`
    collapsed_accuracy: float
    left: list[list[Any]]  # of a collapsed run: [layer, filters before, filters after]
    versions: dict[str, str]
    machine: dict[str, object]


RunRecord = TypeVar("RunRecord", Epoch, Stage, StageSpeed, LayerWidths, Sparsity)

_DEFAULTS = {"kind": "filter"}  # other absent fields are None


def record_of(kind: type[RunRecord], value: Any, where: str, notes: list[str]) -> RunRecord:
    """Check a JSON value and return it as a record with all fields of its kind.

    Absent fields are None (or their default), other keys are dropped. A number that is not finite
    becomes None, with a remark in `notes`. FileError if a required field or a type is wrong.
    """
    if not isinstance(value, dict):
        raise FileError(f"{where} is damaged: expected an object, found {value!r}")
    found: dict[str, Any] = {}
    required: frozenset[str] = getattr(kind, "__required_keys__", frozenset())
    for name, hint in get_type_hints(kind).items():
        found[name] = _DEFAULTS.get(name)
        if value.get(name) is None:
            if name in required:
                raise FileError(f"{where} is damaged: {name!r} is missing")
            continue
        if get_origin(hint) is list:
            found[name] = _records_of(get_args(hint)[0], value[name], f"{where}: {name}", notes)
            continue
        wanted = hint.__name__ if isinstance(hint, type) else str(hint)
        checked = _checked(value[name], wanted, f"{where}: {name}")
        if checked is None:
            if name in required:
                raise FileError(f"{where} is damaged: {name!r} is not a finite number")
            notes.append(f"{Path(where).name}: {name} is not a finite number.")
        else:
            found[name] = checked
    return cast(RunRecord, found)


def _records_of(kind: Any, values: Any, where: str, notes: list[str]) -> list[Any]:
    if not isinstance(values, list):
        raise FileError(f"{where} is damaged: expected a list, found {values!r}")
    return [record_of(kind, value, f"{where}[{n}]", notes) for n, value in enumerate(values)]


def _checked(value: Any, wanted: str, where: str) -> Any:
    """The value if it is of the wanted type, else FileError; None for NaN and infinity."""
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
