"""What `dafp compare` and `dafp reproduce` share: where jobs run, and how they end."""

from pathlib import Path

from ..errors import TrainingError
from ..sweeps import Cluster, Sweep, SweepPaths


def sweep_paths(out: Path, results: Path | None) -> SweepPaths:
    return SweepPaths(out, results or out / "results")


def cluster_of(ray: str | None, cpus: int, gpus: float, retries: int) -> Cluster | None:
    if ray is None:
        if (cpus, gpus, retries) != (1, 0, 3):
            raise TrainingError("--cpus, --gpus and --retries are for jobs through Ray: give --ray")
        return None
    return Cluster(ray, cpus, gpus, retries)


def refuse_failures(done: Sweep) -> None:
    """After everything else is shown: jobs that failed are an error."""
    if done.failures:
        raise TrainingError(
            f"{len(done.failures)} jobs failed ({'; '.join(done.failures.values())}); the same "
            "command tries them again"
        )
