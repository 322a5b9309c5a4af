"""Jobs through a real Ray on this machine: the same results, also when a worker is killed."""

import dataclasses
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from dafp.errors import TrainingError
from dafp.runs.job_hash import config_hash
from dafp.sweeps import Cluster, Place, sweep
from dafp.training.config import Config, Schedule
from support.tiny_runs import timeless

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = pytest.mark.filterwarnings("default")  # Ray has warnings of its own

CONFIG = Config(
    model="vgg11", width=0.05, images=400, batch_size=16, threads=1, method="slm", target=0.3,
    baseline=Schedule(1, 0.05), sparse=Schedule(12, 0.05, ()), finetune=Schedule(1, 0.05),
)  # fmt: skip
CONFIGS = [CONFIG, dataclasses.replace(CONFIG, method="slm+da")]


def holder_of(lock: Path) -> int | None:
    """The process that holds this lock; those that wait for it are listed with an arrow."""
    inode = str(lock.stat().st_ino)
    for line in Path("/proc/locks").read_text().splitlines():
        words = line.split()
        if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
            return int(words[4])
    return None


def kill_in_sparse_training(out: Path, killed: list[int]) -> None:
    """Kill -9 the worker that trains the shared stage, after a few of its epochs."""
    end = time.monotonic() + 90
    while not killed and time.monotonic() < end:
        time.sleep(0.02)
        for file in out.glob("stages/sparse-*.checkpoint"):
            pid = holder_of(file.with_suffix(".lock"))
            if pid is not None:
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return


def test_a_sweep_whose_worker_is_killed_ends_with_the_results_of_one_in_turn(tmp_path):
    place, killed = Place(tmp_path / "out", tmp_path / "results"), []
    killer = threading.Thread(target=kill_in_sparse_training, args=(place.out, killed))
    killer.start()
    done = sweep(CONFIGS, place, cluster=Cluster("local", cpus=1))
    killer.join()
    assert len(killed) == 1
    assert done.failures == {}
    in_turn = sweep(CONFIGS, Place(tmp_path / "turn", tmp_path / "turn/results"))
    assert timeless(done.records) == timeless(in_turn.records)
    assert sorted(f.stem for f in place.results.iterdir()) == sorted(map(config_hash, CONFIGS))
    assert len(list((place.out / "stages").glob("sparse-*.checkpoint"))) == 1


def test_more_than_any_node_has_is_refused_instead_of_waited_for(tmp_path):
    with pytest.raises(TrainingError, match="no node of Ray has 1000 CPUs and 0 GPUs"):
        sweep(CONFIGS, Place(tmp_path, tmp_path), cluster=Cluster("local", cpus=1000))


@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1", "ray://127.0.0.1:1", "somewhere"])
def test_a_cluster_that_is_not_there_is_told_at_once(address, tmp_path):
    began = time.monotonic()
    with pytest.raises(TrainingError, match=rf"--ray {address}: no Ray there .*ray start --head"):
        sweep(CONFIGS, Place(tmp_path, tmp_path), cluster=Cluster(address))
    assert time.monotonic() - began < 30
