"""Read the directory of a training run: configuration, epochs, plan and result."""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import FileError, PlanError
from ..graph.plan import PruningPlan
from ..recovery.sensitivity import Sensitivity, sensitivity_from_json
from ..training.run_records import Epoch, LayerWidths, RunRecord, Sparsity, Stage, record_of

FILES = ("config.toml", "metrics.jsonl", "result.json")


@dataclass(frozen=True)
class Run:
    """The content of a run directory."""

    path: Path
    config: Mapping[str, Any] = field(default_factory=dict)
    config_text: str = ""
    epochs: tuple[Epoch, ...] = ()
    plan: PruningPlan | None = None
    finished: bool = False  # result.json is written at the very end
    about: Mapping[str, str] = field(default_factory=dict)  # model, data, method, seed
    stages: tuple[Stage, ...] = ()
    sparsity: Sparsity | None = None
    layers: tuple[LayerWidths, ...] = ()
    sensitivity: Sensitivity | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    machine: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # remarks on the files, shown on the page

    def __repr__(self) -> str:
        state = "finished" if self.finished else "not finished"
        return f"Run({str(self.path)!r}, {len(self.epochs)} epochs, {state})"


def read_run(run: Path) -> Run:
    """Read a run, finished or not; FileError names the file that is missing or damaged."""
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
        layers=_many(LayerWidths, result, "layers", where, notes) or _layers_of(plan),
        sensitivity=_sensitivity(run / "sensitivity.json"),
        versions=_texts(result, "versions", where),
        machine=_texts(result, "machine", where),
        notes=tuple(notes),
    )


def _text(path: Path) -> str:
    """The text of a file; empty if the file does not exist."""
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


def _sensitivity(path: Path) -> Sensitivity | None:
    return sensitivity_from_json(_text(path), str(path)) if path.exists() else None


def _epochs(path: Path, notes: list[str]) -> tuple[Epoch, ...]:
    """Every epoch once, in the order first written; a resumed run may have repeated some."""
    rows: dict[tuple[str, int], Epoch] = {}
    text = _text(path)
    lines = text.splitlines()
    for at, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            if at == len(lines) and not text.endswith("\n"):  # left by an interruption
                notes.append(f"The last line of {path.name} is incomplete and was left out.")
                break
            raise FileError(f"{path} line {at} is damaged: {error}") from error
        row = record_of(Epoch, value, f"{path} line {at}", notes)
        rows[row["stage"], row["epoch"]] = row
    return tuple(rows.values())


def _sparsity(result: Mapping[str, Any] | None, where: str, notes: list[str]) -> Sparsity | None:
    value = (result or {}).get("sparsity")
    return None if value is None else record_of(Sparsity, value, f"{where}: sparsity", notes)


def _layers_of(plan: PruningPlan | None) -> tuple[LayerWidths, ...]:
    """Widths from the plan alone, for a run that has no result yet."""
    if plan is None:
        return ()
    return tuple(
        record_of(
            LayerWidths, {"name": name, "before": plan.sizes.get(name), "after": len(kept)}, "", []
        )
        for name, kept in plan.keep.items()
    )


def _texts(result: Mapping[str, Any] | None, key: str, where: str) -> dict[str, str]:
    value = (result or {}).get(key) or {}
    if not isinstance(value, dict):
        raise FileError(f"{where} is damaged: {key} is {value!r}; expected an object")
    return {str(name): str(text) for name, text in value.items()}


def _many(
    kind: type[RunRecord], result: Mapping[str, Any] | None, key: str, where: str, notes: list[str]
) -> tuple[RunRecord, ...]:
    values = (result or {}).get(key) or []
    if not isinstance(values, list):
        raise FileError(f"{where} is damaged: {key} is {values!r}; expected a list")
    return tuple(record_of(kind, v, f"{where}: {key}[{i}]", notes) for i, v in enumerate(values))
