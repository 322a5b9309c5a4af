"""Run jobs through Ray, here or on a cluster; the job of a lost worker is restarted."""

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import TrainingError
from ..extras import need
from ..training.config import Config
from .results_store import ResultRow, SweepPaths

_STORE = 100 * 2**20  # bytes of shared memory for a local Ray: results are small


@dataclass(frozen=True)
class Cluster:
    """The Ray cluster to connect to, and the resources of each job."""

    address: str = "local"  # "local" starts Ray here, "auto" finds a running one; or HOST:PORT
    cpus: int = 1  # per job; also its threads
    gpus: float = 0
    retries: int = 3  # times that a job is started again after its worker was lost

    def __post_init__(self) -> None:
        if self.cpus < 1 or self.gpus < 0 or self.retries < 0:
            raise TrainingError(
                f"a job cannot have {self.cpus} CPUs, {self.gpus} GPUs and {self.retries} retries; "
                "give at least one CPU, and nothing negative"
            )


def finished(
    todo: Sequence[Config],
    paths: SweepPaths,
    cluster: Cluster,
    do_job: Callable[[Config, SweepPaths], ResultRow | str],
) -> Iterator[tuple[Config, ResultRow | str]]:
    """Every job with its row or error, in the order in which they finish."""
    if not todo:
        return
    ray = need("ray", "ray", "--ray")
    _connect(ray, cluster)
    try:
        _check_resources(ray, cluster)
        # a restarted job continues in its run directory, which is named by its configuration
        remote = ray.remote(
            num_cpus=cluster.cpus, num_gpus=cluster.gpus, max_retries=cluster.retries
        )(do_job)
        pending = {remote.remote(config, paths): config for config in todo}
        while pending:
            (ready, *_), _ = ray.wait(list(pending))
            yield pending.pop(ready), _outcome(ray, ready, cluster)
    finally:
        ray.shutdown()


def _connect(ray: Any, cluster: Cluster) -> None:
    own: dict[str, Any] = {}
    if cluster.address == "local":
        own = {"include_dashboard": False, "object_store_memory": _STORE}
    try:
        if cluster.address not in ("local", "auto"):
            _knock(cluster.address)
        ray.init(
            address=cluster.address,
            log_to_driver=False,
            logging_level="error",
            ignore_reinit_error=False,
            **own,
        )
    except (OSError, RuntimeError, ValueError) as error:
        first = str(error).strip().splitlines()[0]
        raise TrainingError(
            f"--ray {cluster.address}: no Ray there ({first}); start one with `ray start --head`, "
            "or give --ray local"
        ) from error


def _knock(address: str) -> None:
    """Fail at once if no process accepts connections on the port; Ray would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        raise ValueError("an address is HOST:PORT")
    socket.create_connection((host, int(port)), timeout=10).close()


def _check_resources(ray: Any, cluster: Cluster) -> None:
    """Raise if no node has the resources for a job, which would then wait forever."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    if not any(
        node.get("CPU", 0) >= cluster.cpus and node.get("GPU", 0) >= cluster.gpus for node in nodes
    ):
        best = "; ".join(f"{n.get('CPU', 0):g} CPUs, {n.get('GPU', 0):g} GPUs" for n in nodes)
        raise TrainingError(
            f"no node of Ray has {cluster.cpus} CPUs and {cluster.gpus:g} GPUs for a job; there "
            f"are: {best}"
        )


def _outcome(ray: Any, reference: Any, cluster: Cluster) -> ResultRow | str:
    try:
        found: ResultRow | str = ray.get(reference)
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines()
        return f"its worker was lost more than {cluster.retries} times, or failed: {lines[-1]}"
    return found
