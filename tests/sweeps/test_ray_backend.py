"""Jobs through a real Ray on this machine: the same results, also when a worker is killed."""

import dataclasses
import functools
import os
import sys

import pytest

from dafp.errors import TrainingError
from dafp.runs.job_hash import config_hash
from dafp.sweeps import Cluster, SweepPaths, sweep
from dafp.sweeps.results_store import read_records
from dafp.training.config import Config, Schedule
from support import killed_worker
from support.tiny_runs import timeless

pytestmark = pytest.mark.filterwarnings("default")  # Ray has warnings of its own

CONFIG = Config(
    model="support.killed_worker:net", width=1.0, images=96, batch_size=16, threads=1,
    method="slm", target=0.3, baseline=Schedule(1, 0.05), sparse=Schedule(3, 0.05, ()),
    finetune=Schedule(1, 0.05),
)  # fmt: skip
CONFIGS = [CONFIG, dataclasses.replace(CONFIG, method="slm+da")]


@pytest.fixture
def ray(monkeypatch):
    """Ray, which finds no cluster that somebody else runs on this machine."""
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", functools.cache(frozenset))
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda folder: None)
    return ray


@pytest.mark.slow(reason="starts Ray, and two workers that import torch")
def test_a_sweep_whose_worker_is_killed_ends_with_the_results_of_one_in_turn(
    ray, tmp_path, monkeypatch
):
    paths = SweepPaths(tmp_path / "out", tmp_path / "results")
    monkeypatch.setenv(killed_worker.FOLDER, str(paths.out))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))  # workers import the network
    done = sweep(CONFIGS, paths, cluster=Cluster("local", cpus=1))
    assert done.failures == {}
    assert int((paths.out / "killed").read_text()) != os.getpid()
    monkeypatch.delenv(killed_worker.FOLDER)
    in_turn = sweep(CONFIGS, SweepPaths(tmp_path / "turn", tmp_path / "turn/results"))
    assert timeless(done.records) == timeless(in_turn.records)
    assert sorted(read_records(paths, CONFIGS)) == sorted(map(config_hash, CONFIGS))
    assert len(list((paths.out / "stages").glob("sparse-*.checkpoint"))) == 1


@pytest.mark.slow(reason="starts Ray")
def test_more_than_any_node_has_is_refused_instead_of_waited_for(ray, tmp_path):
    with pytest.raises(TrainingError, match="no node of Ray has 1000 CPUs and 0 GPUs"):
        sweep(CONFIGS, SweepPaths(tmp_path, tmp_path), cluster=Cluster("local", cpus=1000))


def test_without_a_cluster_on_this_machine_auto_is_refused(ray, tmp_path):
    with pytest.raises(TrainingError, match=r"--ray auto: no Ray there .*ray start --head"):
        sweep(CONFIGS, SweepPaths(tmp_path, tmp_path), cluster=Cluster("auto"))


@pytest.mark.parametrize("address", ["127.0.0.1:1", "ray://127.0.0.1:1", "somewhere"])
def test_an_address_without_a_cluster_is_refused_before_ray_tries_for_minutes(
    address, ray, tmp_path, monkeypatch
):
    monkeypatch.setattr(ray, "init", lambda **options: pytest.fail("Ray was asked to connect"))
    with pytest.raises(TrainingError, match=rf"--ray {address}: no Ray there .*ray start --head"):
        sweep(CONFIGS, SweepPaths(tmp_path, tmp_path), cluster=Cluster(address))
