"""Shared by `dafp compare` and `dafp reproduce`: where jobs run, and what happens to failures."""

from pathlib import Path

from ..errors import TrainingError
from ..sweeps import Cluster, Sweep, SweepPaths


def sweep_paths(out: Path, results: Path | None) -> SweepPaths:
    """The directories of the jobs and of their results."""
    return SweepPaths(out, results or out / "results")


def cluster_of(ray: str | None, cpus: int, gpus: float, retries: int) -> Cluster | None:
    """The Ray cluster to use, or None to run the jobs in this process."""
    if ray is None:
        if (cpus, gpus, retries) != (1, 0, 3):
            raise TrainingError("--cpus, --gpus and --retries are for jobs through Ray: give --ray")
        return None
    return Cluster(ray, cpus, gpus, retries)


def refuse_failures(done: Sweep) -> None:
    """Raise an error for jobs that failed; called after the results are printed."""
    if done.failures:
        raise TrainingError(
            f"{len(done.failures)} jobs failed ({'; '.join(done.failures.values())}); the same "
            "command tries them again"
        )
