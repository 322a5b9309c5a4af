"""The directory of a run: the files of its whole state, locked by one process at a time."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ..errors import FileError, TrainingError
from ..storage.atomic_write import write_atomically
from ..storage.digest import file_digest
from ..storage.lock import lock_file
from .config import INTRODUCED, Config, changed, differences, read_toml, to_toml
from .run_records import Epoch, RunResult


@dataclass(frozen=True)
class Paths:
    """The paths of the files of a run."""

    root: Path
    stages: Path | None = None  # directory of the checkpoints that runs share

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def inputs(self) -> Path:
        return self.root / "inputs.json"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def latency(self) -> Path:
        return self.root / "latency.json"

    @property
    def baseline(self) -> Path:
        return self.root / "baseline.safetensors"

    @property
    def pruned(self) -> Path:
        return self.root / "pruned.safetensors"

    @property
    def model(self) -> Path:
        return self.root / "model.safetensors"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    def checkpoint(self, stage: str, shared_as: str = "") -> Path:
        """The checkpoint file of a stage.

        `shared_as` is a hash of everything that the stage depends on. If it is given and there is a
        directory `stages`, the file is there, and runs with the same hash share it.
        """
        if self.stages is not None and shared_as:
            return self.stages / f"{stage}-{shared_as}.checkpoint"
        return self.root / f"{stage}.checkpoint"


@contextmanager
def alone(file: Path, paths: Paths, main: bool) -> Iterator[None]:
    """Lock a shared checkpoint: other runs wait, and then find it finished."""
    if paths.stages is None or not main:
        yield
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_file(file.with_suffix(".lock"))
    except OSError as error:
        raise FileError(f"cannot share {file}: {error.strerror}") from error
    with lock:
        for rest in file.parent.glob(f".{file.name}.*.writing"):
            rest.unlink()
        yield


@contextmanager
def held(paths: Paths, config: Config, main: bool) -> Iterator[None]:
    """Lock the run directory, and check that it was started with this configuration.

    If the run fails before it has written anything else, the directory is given back: it may be
    used for another configuration.
    """
    if not main:
        yield
        return
    made = not paths.root.exists()
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        lock = lock_file(paths.root / ".lock", wait=False)
    except TimeoutError as error:
        raise FileError(f"another process is running in {paths.root}") from error
    except OSError as error:
        raise FileError(f"cannot use {paths.root} for a run: {error.strerror}") from error
    with lock:
        begun = paths.config.exists()
        try:
            _claim(paths, config)
            yield
        except Exception:
            if not begun:
                _give_back(paths, made)
            raise


def _claim(paths: Paths, config: Config) -> None:
    """Write the configuration, or refuse a directory that has another one."""
    for rest in paths.root.glob(".*.writing"):
        rest.unlink()
    if paths.config.exists():
        changes = differences(read_config(paths.root), config)
        if changes:
            raise TrainingError(
                f"{paths.root} holds a run with another configuration ({'; '.join(changes)}). "
                "Give another --out, or delete the directory to start again"
            )
    else:
        _refuse_missing(config)
        write_atomically(paths.config, to_toml(config).encode())
    _check_inputs(paths, config)


def _give_back(paths: Paths, made: bool) -> None:
    """Remove what `_claim` wrote, if there is nothing else in the directory."""
    lock = paths.root / ".lock"
    ours = {lock, paths.config, paths.inputs}
    if set(paths.root.iterdir()) <= ours:
        for file in ours if made else ours - {lock}:
            file.unlink(missing_ok=True)
        if made:
            paths.root.rmdir()


def _refuse_missing(config: Config) -> None:
    """Refuse a missing input file before the configuration is written to the directory."""
    for key, name in (("weights", config.weights), ("teacher", config.teacher)):
        if name and not Path(name).is_file():
            raise FileError(f"there is no file {name} (the {key} of the run)")


def _check_inputs(paths: Paths, config: Config) -> None:
    """Refuse to continue if the input files have changed since the run was started."""
    named = {"weights": config.weights, "teacher": config.teacher}
    found = {key: file_digest(Path(name)) for key, name in named.items() if Path(name).is_file()}
    if not found:
        return
    if not paths.inputs.exists():
        write_atomically(paths.inputs, (json.dumps(found, sort_keys=True) + "\n").encode())
        return
    for key, digest in read_json(paths.inputs).items():
        if found.get(key, digest) != digest:
            raise TrainingError(
                f"{named[key]} is not the {key} that {paths.root} was begun with: the file has "
                "changed. Put the old one back to go on, or give another --out"
            )


def read_config(out: Path) -> Config:
    """The configuration that a run directory was started with."""
    started = Config()
    for name, value in INTRODUCED.items():
        table, _, key = name.rpartition(".")
        started = changed(started, {table: {key: value}} if table else {key: value}, "INTRODUCED")
    return changed(started, read_toml(Paths(out).config), str(Paths(out).config))


def read_result(path: Path) -> RunResult:
    """The result of a finished run."""
    return cast(RunResult, read_json(path))


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a run."""
    try:
        result: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}; delete it to make it again") from error
    return result


def write_metrics(paths: Paths, rows: list[Epoch]) -> None:
    """Write the epochs so far, unless the file begins with them: it may hold later ones too."""
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows).encode()
    if not (paths.metrics.exists() and paths.metrics.read_bytes().startswith(lines)):
        write_atomically(paths.metrics, lines)


def write_result(paths: Paths, result: RunResult) -> None:
    text = json.dumps(result, indent=1, sort_keys=True) + "\n"
    write_atomically(paths.result, text.encode())
