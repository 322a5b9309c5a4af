"""Results of finished jobs in one JSONL file, found by comparing configurations.

A row holds the whole configuration of its job, so it is found by later versions of dafp too:
a setting that a row lacks has the value listed in `training.config.INTRODUCED`.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

from .. import __version__
from ..errors import FileError
from ..runs.job_hash import config_hash, identity, values_hash
from ..storage.atomic_write import write_atomically
from ..storage.lock import lock_file
from ..storage.revision import code_revision
from ..training.config import Config
from ..training.run_directory import Paths
from ..training.run_records import RunResult

ROW_FORMAT = 2  # of a row of the results file; 1 was a file per job, named by its hash
RUNS_FORMAT = 1  # of OUT, the directory of runs and shared stages
_CURVES = (
    "penalty",
    "sparsity",
    "sparsity_bn_scale",
    "sparsity_dependency_aware",
    "val_accuracy",
    "test_accuracy",
)
_OLD_NAME = re.compile(r"[0-9a-f]{16}\.json")


class ResultRow(TypedDict):
    """One row of the results file."""

    format: int
    dafp: str  # version
    revision: str  # of the code, see storage.revision; absent in files of format 1
    config: dict[str, Any]  # see job_hash.identity
    result: RunResult
    curves: dict[str, dict[str, list[Any]]]  # per stage and column of metrics.jsonl
    kept: list[list[Any]]  # [layer, filters before, filters after]


@dataclass(frozen=True)
class SweepPaths:
    """The directories and files of a sweep."""

    out: Path  # run directories, and the stages that runs share
    results: Path  # a .jsonl file, or a directory that holds results.jsonl; meant to be kept

    def run(self, config: Config) -> Path:
        return self.out / "runs" / config_hash(config)

    @property
    def stages(self) -> Path:
        return self.out / "stages"

    @property
    def results_file(self) -> Path:
        return self.results if self.results.suffix == ".jsonl" else self.results / "results.jsonl"


def record_of(config: Config, result: RunResult, run: Path) -> ResultRow:
    """The row of a finished run: configuration, result, and a few numbers per epoch."""
    return {
        "format": ROW_FORMAT,
        "dafp": __version__,
        "revision": code_revision(Path(__file__).parents[1], __version__),
        "config": identity(config),
        "result": result,
        "curves": _curves(Paths(run).metrics),
        "kept": _kept(result),
    }


def write_record(paths: SweepPaths, record: ResultRow) -> None:
    """Append a row. Several processes may do so at the same time; rows are never incomplete."""
    file = paths.results_file
    line = json.dumps(record, sort_keys=True, separators=(",", ":")) + "\n"
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with lock_file(file.with_name(f".{file.name}.lock")):
            rows = file.read_bytes() if file.exists() else b""
            if rows and not rows.endswith(b"\n"):
                rows += b"\n"
            write_atomically(file, rows + line.encode())
    except OSError as error:
        raise FileError(f"cannot keep results in {paths.results}: {error.strerror}") from error


def claim(paths: SweepPaths) -> None:
    """Create the directory of runs and stages, or refuse one that has another format."""
    mark, mine = paths.out / "version.json", {"dafp": __version__, "format": RUNS_FORMAT}
    try:
        if mark.exists():
            found = json.loads(mark.read_text(encoding="utf-8"))
            if found.get("format") != RUNS_FORMAT:
                raise FileError(
                    f"{paths.out} holds runs of dafp {found.get('dafp')} in format "
                    f"{found.get('format')}, and dafp {__version__} reads format {RUNS_FORMAT}; "
                    "give another --out"
                )
            return
        paths.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, AttributeError) as error:
        raise FileError(f"cannot use {paths.out} for jobs: {error}") from error
    write_atomically(mark, json.dumps(mine).encode())


def read_records(paths: SweepPaths, configs: Sequence[Config]) -> dict[str, ResultRow]:
    """The rows of those configurations that are finished, by the hash of their configuration.

    Rows made by any version of dafp count. Of two rows of one configuration the last one counts.
    """
    wanted = {config_hash(config) for config in configs}
    return {name: row for name, row in _all_rows(paths) if name in wanted}


def _all_rows(paths: SweepPaths) -> Iterator[tuple[str, ResultRow]]:
    """Every row with the hash of its configuration: files of format 1 first, then the JSONL."""
    if paths.results.is_dir():
        for path in sorted(paths.results.glob("*.json")):
            if _OLD_NAME.fullmatch(path.name):
                row = _parsed(_text(path), 1, f"{path}", "delete it")
                if row.get("hash") != path.stem:
                    raise FileError(
                        f"{path} holds the result of job {row.get('hash')}; delete it to "
                        "compute it again"
                    )
                yield path.stem, row
    file = paths.results_file
    for number, line in enumerate(_text(file).split("\n") if file.exists() else (), 1):
        if line.strip():
            row = _parsed(line, ROW_FORMAT, f"{file} line {number}", "delete the line")
            yield values_hash(row["config"]), row


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}") from error


def _parsed(text: str, form: int, where: str, remedy: str) -> ResultRow:
    try:
        row = json.loads(text)
        found = row["format"]
        complete = all(isinstance(row[key], dict) for key in ("config", "result"))
        if not complete:
            raise ValueError("config or result is not an object")
    except (ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"{where} is not a result of a job, or damaged ({error!r}); {remedy} to compute it "
            "again"
        ) from error
    if found != form:
        raise FileError(
            f"{where} was made by dafp {row.get('dafp')} in format {found}, and dafp {__version__} "
            f"reads format {form} there; update dafp, or give another --results"
        )
    record: ResultRow = row
    return record


def _curves(metrics: Path) -> dict[str, dict[str, list[Any]]]:
    """Stage -> column of metrics.jsonl -> a number per epoch."""
    curves: dict[str, dict[str, list[Any]]] = {}
    if not metrics.exists():
        return curves
    for line in metrics.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        columns = curves.setdefault(row["stage"], {})
        for key in _CURVES:
            if key in row:
                value = row[key]
                columns.setdefault(key, []).append(
                    round(value, 8) if isinstance(value, float) else value
                )
    return curves


def _kept(result: RunResult) -> list[list[Any]]:
    """[layer, filters before, filters after] of every layer, also of a collapsed network."""
    if "layers" not in result:
        return list(result.get("left", []))
    return [
        [row["name"], row["before"], row["after"]]
        for row in result["layers"]
        if row["kind"] == "filter"
    ]
