"""Run the jobs whose result is missing: one after another, or through Ray."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..data.download import locate
from ..errors import DafpError, FileError, TrainingError
from ..methods import find
from ..models import build
from ..runs.job_hash import config_hash, stage_hash
from ..runs.pipeline import run
from ..storage.atomic_write import write_atomically
from ..training.config import Config, to_toml
from ..training.loop import NoProgress, Progress
from ..training.run_directory import Paths
from . import ray_backend
from .ray_backend import Cluster
from .results_store import ResultRow, SweepPaths, claim, read_records, record_of, write_record


@dataclass(frozen=True)
class Sweep:
    """Results and failures of jobs, by the hash of their configuration."""

    records: dict[str, ResultRow] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"Sweep({len(self.records)} results, {len(self.failures)} failures)"

    def of(self, config: Config) -> ResultRow | None:
        """The record of a configuration, if it was finished."""
        return self.records.get(config_hash(config))


def sweep(
    configs: Sequence[Config],
    paths: SweepPaths,
    progress: Progress | None = None,
    cluster: Cluster | None = None,
) -> Sweep:
    """Run the configurations whose result is missing, and return the results of all.

    A job that fails does not stop the others: it is listed in `failures`, and tried again by the
    next call. Jobs that cannot work at all are refused before the first job starts.
    """
    progress = progress or NoProgress()
    done = Sweep(read_records(paths, configs))
    todo = missing(configs, done)
    _refuse_early(todo)
    claim(paths)
    if done.records:
        progress.say(
            f"{len(done.records)} of {len(done.records) + len(todo)} jobs are done already"
        )
    if cluster is None:
        finished = _in_turn(todo, paths, progress)
    else:
        far = SweepPaths(paths.out.absolute(), paths.results)
        jobs = [_from_anywhere(c, cluster.cpus) for c in todo]
        finished = ray_backend.finished(jobs, far, cluster, do_job)
    for number, (config, found) in enumerate(finished, 1):
        if isinstance(found, str):
            done.failures[config_hash(config)] = f"{describe(config)}: {found}"
            progress.say(f"failed: {describe(config)}: {found}")
            continue
        write_record(paths, found)
        done.records[config_hash(config)] = found
        progress.say(f"job {number} of {len(todo)} done: {describe(config)}")
    return done


def missing(configs: Sequence[Config], done: Sweep) -> list[Config]:
    """The jobs without a result, each once; those that train a new shared stage come first."""
    unique = {config_hash(c): c for c in configs if config_hash(c) not in done.records}
    started: set[str] = set()
    first: list[Config] = []
    others: list[Config] = []
    for config in unique.values():
        stages = _shared(config)
        (first if stages - started else others).append(config)
        started |= stages
    return first + others


def _shared(config: Config) -> set[str]:
    """The hashes of the stages that a run may share with others."""
    stages = ["baseline"] if config.baseline.epochs else []
    stages += ["sparse"] if find(config.method).train is not None else []
    return {stage_hash(config, stage) for stage in stages}


def do_job(config: Config, paths: SweepPaths, progress: Progress | None = None) -> ResultRow | str:
    """Run one job; return its row, or the text of its error."""
    out = paths.run(config)
    try:
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise FileError(f"cannot use {out} for a run: {error.strerror}") from error
        # the directory's name does not depend on root, threads and tracker: they may have changed
        write_atomically(Paths(out).config, to_toml(config).encode())
        result = run(config, out, progress, paths.stages)
        return record_of(config, result, out)
    except DafpError as error:
        return " ".join(str(error).split())
    except (RuntimeError, MemoryError, OSError) as error:  # out of memory: other jobs continue
        return f"{type(error).__name__}: {' '.join(str(error).split())}"


def describe(config: Config) -> str:
    return f"{config.model} {config.data} {config.method} r={config.target:g} seed {config.seed}"


def _in_turn(
    todo: Sequence[Config], paths: SweepPaths, progress: Progress
) -> Iterator[tuple[Config, ResultRow | str]]:
    for number, config in enumerate(todo, 1):
        progress.say(f"job {number} of {len(todo)}: {describe(config)}")
        yield config, do_job(config, paths, progress)


def _from_anywhere(config: Config, threads: int) -> Config:
    """The same job with absolute paths, for a worker that runs in another directory."""
    weights = str(Path(config.weights).absolute()) if config.weights else ""
    root = str(Path(config.root).absolute())
    return dataclasses.replace(config, root=root, weights=weights, threads=threads)


def _refuse_early(todo: Sequence[Config]) -> None:
    """Refuse an unknown method or model, or missing data, before the first job starts."""
    if any(config.unit == "latency" for config in todo):
        raise TrainingError(
            "unit='latency' is measured on one machine, so its results cannot be compared or kept "
            "for others; use unit='macs', and dafp bench for the speed of the models"
        )
    for method in {c.method for c in todo}:
        find(method)
    for data, root in {(c.data, c.root) for c in todo}:
        locate(data, Path(root))
    for model, width in {(c.model, c.width) for c in todo}:
        build(model, classes=10, width=width)
