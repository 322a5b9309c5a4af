"""One small JSON per finished job, found by the hash of its configuration."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import FileError
from ..runs.job_hash import config_hash, plain
from ..storage.atomic_write import write_atomically
from ..training.config import Config
from ..training.run_directory import Paths, Result

FORMAT = 1
_CURVES = ("penalty", "sparsity", "sparsity_bn_scale", "sparsity_dependency_aware",
           "val_accuracy", "test_accuracy")  # fmt: skip
_NAME = re.compile(r"[0-9a-f]{16}\.json")


@dataclass(frozen=True)
class Place:
    """Where a sweep keeps what it has done."""

    out: Path  # run directories, and the stages that runs share
    results: Path  # one file per finished job; the only part worth keeping for long

    def run(self, config: Config) -> Path:
        return self.out / "runs" / config_hash(config)

    @property
    def stages(self) -> Path:
        return self.out / "stages"


def record_of(config: Config, result: Result, run: Path) -> Result:
    """What is kept of a finished run: configuration, result, and a few numbers per epoch."""
    return {
        "format": FORMAT, "dafp": __version__, "hash": config_hash(config),
        "config": plain(config), "result": result, "curves": _curves(Paths(run).metrics),
        "kept": _kept(result),
    }  # fmt: skip


def write_record(place: Place, record: Result) -> None:
    try:
        place.results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot keep results in {place.results}: {error.strerror}") from error
    text = json.dumps(record, indent=1, sort_keys=True) + "\n"
    write_atomically(place.results / f"{record['hash']}.json", text.encode())


def claim(place: Place) -> None:
    """Make the directory of runs and stages, or refuse one that another version has begun."""
    mark, mine = place.out / "version.json", {"dafp": __version__, "format": FORMAT}
    try:
        if mark.exists():
            found = json.loads(mark.read_text(encoding="utf-8"))
            if found != mine:
                raise FileError(
                    f"{place.out} holds runs of dafp {found.get('dafp')} (format "
                    f"{found.get('format')}), this is dafp {__version__} (format {FORMAT}); they "
                    "are not mixed: give another --out"
                )
            return
        place.out.mkdir(parents=True, exist_ok=True)
    except (OSError, ValueError, AttributeError) as error:
        raise FileError(f"cannot use {place.out} for jobs: {error}") from error
    write_atomically(mark, json.dumps(mine).encode())


def read_records(place: Place, configs: Sequence[Config]) -> dict[str, Result]:
    """The results of those configurations that are finished, by their hash.

    A directory that holds any result of another version of dafp is refused.
    """
    wanted = {config_hash(config) for config in configs}
    found = {}
    for path in sorted(place.results.glob("*.json")):
        if _NAME.fullmatch(path.name):
            record = _read(path)
            if path.stem in wanted:
                found[path.stem] = record
    return found


def _read(path: Path) -> Result:
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        made_by, form, name = record["dafp"], record["format"], record["hash"]
        complete = isinstance(record["result"], dict) and isinstance(record["config"], dict)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(
            f"{path} is no result of a job, or damaged ({error!r}); delete it to have it made anew"
        ) from error
    if (made_by, form) != (__version__, FORMAT):
        raise FileError(
            f"{path} was made by dafp {made_by} (format {form}), this is dafp {__version__} "
            f"(format {FORMAT}); results of two versions are not mixed: give another --results"
        )
    if not complete or name != path.stem:
        raise FileError(f"{path} holds the result of job {name}; delete it to have it made anew")
    found: Result = record
    return found


def _curves(metrics: Path) -> dict[str, dict[str, list[Any]]]:
    """Per stage and column, a number per epoch."""
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


def _kept(result: Result) -> list[list[Any]]:
    """[layer, filters before, filters after] of every layer, of a collapsed network too."""
    if "layers" not in result:
        return list(result.get("left", []))
    return [
        [row["name"], row["before"], row["after"]]
        for row in result["layers"]
        if row["kind"] == "filter"
    ]
