"""Read the directory of a training run: configuration, epochs, plan and result."""

import dataclasses
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from ..errors import FileError, PlanError
from ..plan import PruningPlan

FILES = ("config.toml", "metrics.jsonl", "result.json")


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
class Layer:
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


@dataclass(frozen=True)
class Run:
    """All that the directory of a run says."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str = ""
    epochs: tuple[Epoch, ...] = ()
    plan: PruningPlan | None = None
    finished: bool = False  # result.json is written at the very end
    about: Mapping[str, str] = field(default_factory=dict)  # model, data, method, seed
    stages: tuple[Stage, ...] = ()
    sparsity: Sparsity | None = None
    layers: tuple[Layer, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a reader has to know about the files


def read_run(run: Path) -> Run:
    """Read a run, finished or not; FileError says which file is missing or damaged, and where."""
    run = Path(run)
    if not run.is_dir():
        raise FileError(f"{run} is not a directory; expected the directory of a training run")
    if not any((run / name).is_file() for name in FILES):
        raise FileError(f"{run} holds no training run; expected one of {', '.join(FILES)} in it")
    notes: list[str] = []
    config_text = _text(run / "config.toml")
    result = _result(run / "result.json")
    epochs = _epochs(run / "metrics.jsonl", notes)
    plan = _plan(run / "plan.json")
    where = str(run / "result.json")
    return Run(
        run,
        config=_config(run / "config.toml", config_text),
        config_text=config_text,
        epochs=epochs,
        plan=plan,
        finished=result is not None,
        about={k: str(v) for k, v in (result or {}).items() if isinstance(v, str | int | float)},
        stages=_many(Stage, result, "stages", where, notes),
        sparsity=_sparsity(result, where, notes),
        layers=_many(Layer, result, "layers", where, notes) or _layers_of(plan),
        versions=_texts(result, "versions", where),
        machine=_texts(result, "machine", where),
        notes=tuple(notes),
    )


def _text(path: Path) -> str:
    """What a file holds; nothing if it is not there."""
    if not path.exists():
        return ""
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(f"{path} is damaged: it is not UTF-8 text ({error.reason})") from error
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror or error}") from error


def _config(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FileError(f"{path} is damaged: {error}") from error


def _result(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        value = json.loads(_text(path))
    except (ValueError, RecursionError) as error:
        raise FileError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise FileError(f"{path} is damaged: expected an object, found {type(value).__name__}")
    return value


def _plan(path: Path) -> PruningPlan | None:
    if not path.exists():
        return None
    try:
        return PruningPlan.from_json(_text(path))
    except PlanError as error:
        raise FileError(f"{path}: {error}") from error


def _epochs(path: Path, notes: list[str]) -> tuple[Epoch, ...]:
    """Every epoch once, in the order they were first written: a resumed run repeats some."""
    rows: dict[tuple[str, int], Epoch] = {}
    text = _text(path)
    lines = text.splitlines()
    for at, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if at == len(lines) and not text.endswith("\n"):  # what an interruption leaves
                notes.append(f"The last line of {path.name} is incomplete and was left out.")
                break
            raise FileError(f"{path} line {at} is damaged: {error}") from error
        row = _one(Epoch, value, f"{path} line {at}", notes)
        rows[row.stage, row.epoch] = row
    return tuple(rows.values())


def _sparsity(result: Mapping[str, Any] | None, where: str, notes: list[str]) -> Sparsity | None:
    value = (result or {}).get("sparsity")
    return None if value is None else _one(Sparsity, value, f"{where}: sparsity", notes)


def _layers_of(plan: PruningPlan | None) -> tuple[Layer, ...]:
    """Widths by the plan alone, for a run whose result is not there yet."""
    if plan is None:
        return ()
    return tuple(
        Layer(name, "filter", plan.sizes.get(name), len(kept)) for name, kept in plan.keep.items()
    )


def _texts(result: Mapping[str, Any] | None, key: str, where: str) -> dict[str, str]:
    value = (result or {}).get(key) or {}
    if not isinstance(value, dict):
        raise FileError(f"{where} is damaged: {key} is {value!r}; expected an object")
    return {str(name): str(text) for name, text in value.items()}


Record = TypeVar("Record", Epoch, Stage, Layer, Sparsity)


def _many(
    kind: type[Record], result: Mapping[str, Any] | None, key: str, where: str, notes: list[str]
) -> tuple[Record, ...]:
    values = (result or {}).get(key) or []
    if not isinstance(values, list):
        raise FileError(f"{where} is damaged: {key} is {values!r}; expected a list")
    return tuple(_one(kind, v, f"{where}: {key}[{i}]", notes) for i, v in enumerate(values))


def _one(kind: type[Record], value: Any, where: str, notes: list[str]) -> Record:
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
        found[part.name] = _checked(value[part.name], str(part.type), f"{where}: {part.name}")
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
