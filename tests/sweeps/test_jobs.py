"""Jobs: found by the hash of their configuration, done once, their stages shared."""

import dataclasses
import fcntl
import json
import shutil
import sys
import threading

import pytest

import dafp
from dafp.errors import DataError, FileError, ModelError, TrainingError
from dafp.runs import pipeline
from dafp.runs.job_hash import config_hash, identity, stage_hash
from dafp.runs.pipeline import run
from dafp.sweeps import Cluster, SweepPaths, missing, sweep
from dafp.sweeps.jobs import Sweep, _from_anywhere
from dafp.training.config import Config, Schedule
from dafp.training.loop import NoProgress
from support.tiny_runs import outcome as files_of
from support.tiny_runs import timeless, use_tiny_data

CONFIG = Config(
    model="support.training:users_net", width=1.0, batch_size=16, threads=1,
    baseline=Schedule(1, 0.05), sparse=Schedule(2, 0.05, ()), finetune=Schedule(1, 0.05),
)  # fmt: skip


class Counted(NoProgress):
    """Remembers which stages were trained."""

    def __init__(self) -> None:
        self.stages, self.said = [], []

    def stage(self, name, epochs, steps, done=0, later=0) -> None:
        self.stages.append(name)

    def say(self, text) -> None:
        self.said.append(text)


def made(**changes) -> Config:
    return dataclasses.replace(CONFIG, **changes)


def paths_in(path) -> SweepPaths:
    return SweepPaths(path / "out", path / "results")


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    use_tiny_data(monkeypatch)


# ---- hashes --------------------------------------------------------------------------------------


def test_the_hash_of_a_configuration_is_this_one_on_every_machine():
    assert config_hash(Config()) == config_hash(Config(root="/elsewhere", threads=7, tracker=""))
    assert len(config_hash(Config())) == 16


@pytest.mark.parametrize(
    "change",
    [{"seed": 1}, {"target": 0.4}, {"method": "slm"}, {"finetune": Schedule(3)}, {"keep": ("0",)}],
    ids=str,
)
def test_whatever_changes_the_result_changes_the_hash(change):
    assert config_hash(made(**change)) != config_hash(CONFIG)


def test_the_hash_does_not_depend_on_the_order_of_settings_or_on_python():
    values = {"seed": 3, "target": 0.7}
    again = dict(reversed(values.items()))
    assert config_hash(made(**values)) == config_hash(made(**again))


@pytest.mark.parametrize(
    ("change", "baseline", "sparse"),
    [
        ({"target": 0.7}, True, False),  # the automatic λ follows the target
        ({"after": "scratch-E", "finetune": Schedule(9), "compensate": False}, True, True),
        ({"seed": 1}, False, False),
        ({"sparse": Schedule(9)}, True, False),
        ({"baseline": Schedule(9)}, False, True),  # dafp trains from fresh weights
        ({"root": "x", "threads": 4}, True, True),
    ],
    ids=str,
)
def test_stages_of_dafp_are_shared_where_nothing_differs_that_they_see(change, baseline, sparse):
    other = made(**change)
    assert (stage_hash(CONFIG, "baseline") == stage_hash(other, "baseline")) is baseline
    assert (stage_hash(CONFIG, "sparse") == stage_hash(other, "sparse")) is sparse


def test_slimming_trains_once_for_all_ratios_and_both_scores_but_not_for_another_penalty():
    slm = made(method="slm")
    alike = [
        made(method=m, target=r) for m in ("slm", "slm+da", "slm+da+local") for r in (0.3, 0.7)
    ]
    assert {stage_hash(c, "sparse") for c in alike} == {stage_hash(slm, "sparse")}
    assert stage_hash(made(method="slm", step=1e-3), "sparse") != stage_hash(slm, "sparse")
    assert stage_hash(CONFIG, "sparse") != stage_hash(slm, "sparse")


# ---- doing ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def slimmed(tmp_path_factory):
    """Slimming at two ratios and two scores, and one that prunes the baseline."""
    home = tmp_path_factory.mktemp("sweep")
    configs = [made(method=m, target=r) for m in ("slm", "slm+da") for r in (0.3, 0.5)]
    configs.append(made(method="l1-norm"))
    progress = Counted()
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_data(patch)
        done = sweep(configs, paths_in(home), progress)
    return home, configs, progress, done


def test_shared_stages_are_trained_once(slimmed):
    _, configs, progress, done = slimmed
    assert len(done.records) == len(configs) == 5
    assert sorted(progress.stages) == ["baseline", *["finetune"] * 5, "sparse"]


def test_a_job_that_shares_stages_gives_the_bits_of_a_separate_run(slimmed, tmp_path):
    home, configs, _, done = slimmed
    for config in (configs[1], configs[3]):  # the second to use the sparse training, and another
        pipeline.run(config, tmp_path / config_hash(config))
        alone, shared = (files_of(d / config_hash(config)) for d in (tmp_path, home / "out/runs"))
        assert alone == shared
        assert timeless(done.of(config)["result"]) == alone["result"]


def test_a_finished_sweep_does_nothing_again(slimmed):
    home, configs, _, done = slimmed
    progress = Counted()
    again = sweep(configs, paths_in(home), progress)
    assert (again.records, progress.stages) == (done.records, [])
    assert progress.said == ["5 of 5 jobs are done already"]


def test_the_results_alone_are_enough_and_a_sweep_that_grows_does_only_what_is_new(
    slimmed, tmp_path
):
    home, configs, _, _ = slimmed
    progress = Counted()
    more = [*configs, made(method="random")]
    shutil.copytree(home / "results", tmp_path / "results")
    done = sweep(more, paths_in(tmp_path), progress)
    assert len(done.records) == 6
    assert progress.stages == ["baseline", "finetune"]


def test_a_result_is_one_small_row_that_holds_its_whole_configuration(slimmed):
    home, configs, _, _ = slimmed
    lines = (home / "results/results.jsonl").read_text().splitlines()
    for config, line in zip(configs, lines, strict=True):
        assert len(line) < 6000
        record = json.loads(line)
        assert record["config"] == identity(config)
        assert "root" not in record["config"]
        assert record["dafp"] == dafp.__version__


def test_a_result_tells_times_only_in_fields_that_end_in_s(slimmed, tmp_path):
    _, configs, _, done = slimmed
    again = sweep(configs[:1], paths_in(tmp_path))
    assert timeless(again.of(configs[0])) == timeless(done.of(configs[0]))


def test_a_sweep_stopped_in_the_middle_of_a_shared_stage_goes_on_to_the_same_results(
    slimmed, tmp_path
):
    class Stopped(Counted):
        def epoch(self, row) -> None:
            if row["stage"] == "sparse":
                raise KeyboardInterrupt

    _, configs, _, done = slimmed
    with pytest.raises(KeyboardInterrupt):
        sweep(configs, paths_in(tmp_path), Stopped())
    assert not (tmp_path / "results").exists()
    (tmp_path / "out/stages/.sparse-x.checkpoint.4711.writing").write_bytes(b"half")
    again = sweep(configs, paths_in(tmp_path))
    assert timeless(again.records) == timeless(done.records)


def test_jobs_that_begin_a_stage_come_first_and_each_job_only_once():
    slm = [made(method="slm", target=r) for r in (0.3, 0.5)]
    todo = missing([*slm, slm[0], CONFIG], Sweep())
    assert todo == [slm[0], CONFIG, slm[1]]


def test_a_job_that_fails_does_not_stop_the_others_and_is_tried_again(tmp_path, monkeypatch):
    bad = made(seed=1, sparse=Schedule(1, 1e30, ()))
    done = sweep([bad, CONFIG], paths_in(tmp_path))
    assert list(done.records) == [config_hash(CONFIG)]
    (text,) = done.failures.values()
    assert "dafp r=0.5 seed 1" in text
    assert "loss became" in text or "weights became infinite" in text
    assert list(sweep([bad, CONFIG], paths_in(tmp_path)).failures) == [config_hash(bad)]


def test_a_job_that_runs_out_of_memory_does_not_stop_the_others(tmp_path, monkeypatch):
    def run_out(config, *args):
        if config.seed == 1:
            raise RuntimeError("out of\n memory")
        return run(config, *args)

    monkeypatch.setattr(sys.modules["dafp.sweeps.jobs"], "run", run_out)
    done = sweep([made(seed=1), CONFIG], paths_in(tmp_path))
    assert list(done.records) == [config_hash(CONFIG)]
    assert "RuntimeError: out of memory" in done.failures[config_hash(made(seed=1))]


def test_a_job_waits_for_a_stage_that_another_trains_and_then_has_it(slimmed, tmp_path):
    home, configs, _, done = slimmed
    shutil.copytree(home / "out/stages", tmp_path / "out/stages")
    progress = Counted()
    worker = threading.Thread(target=sweep, args=(configs[:1], paths_in(tmp_path), progress))
    with open(tmp_path / f"out/stages/sparse-{stage_hash(configs[0], 'sparse')}.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        worker.start()
        worker.join(2)
        assert worker.is_alive()
        assert progress.stages == []
    worker.join(600)
    assert progress.stages == ["finetune"]
    assert timeless(sweep(configs[:1], paths_in(tmp_path)).of(configs[0])) == timeless(
        done.of(configs[0])
    )


# ---- refused -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"model": "vgg12"}, ModelError, "no model 'vgg12'"),
        ({"data": "cifar10", "root": "nowhere"}, DataError, "dafp data get cifar10"),
    ],
    ids=str,
)
def test_what_cannot_work_is_refused_before_the_first_job(change, error, words, tmp_path):
    progress = Counted()
    with pytest.raises(error, match=words):
        sweep([CONFIG, made(**change)], paths_in(tmp_path), progress)
    assert progress.stages == []


def test_runs_in_another_format_are_refused(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/version.json").write_text('{"dafp": "9.9", "format": 9}')
    with pytest.raises(FileError, match=r"holds runs of dafp 9\.9 in format 9.* another --out"):
        sweep([CONFIG], paths_in(tmp_path))


@pytest.mark.parametrize("values", [{"cpus": 0}, {"gpus": -1}, {"retries": -1}], ids=str)
def test_a_job_asks_ray_for_something_that_exists(values):
    with pytest.raises(TrainingError, match="a job cannot have"):
        Cluster(**values)


# ---- given weights -------------------------------------------------------------------------------


def test_given_weights_count_by_their_content_not_by_their_name(tmp_path):
    one, other = tmp_path / "one.pt", tmp_path / "other.pt"
    one.write_bytes(b"1")
    other.write_bytes(b"1")
    config = Config(weights=str(one))
    before = config_hash(config), stage_hash(config, "baseline")
    assert config_hash(dataclasses.replace(config, weights=str(other))) == before[0]
    one.write_bytes(b"22")
    assert config_hash(config) != before[0]
    assert stage_hash(config, "baseline") != before[1]


def test_a_job_for_a_worker_elsewhere_is_the_same_job_by_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "w.pt").write_bytes(b"1")
    config = Config(weights="w.pt", root="data")
    far = _from_anywhere(config, 3)
    assert (far.weights, far.root, far.threads) == (
        str(tmp_path / "w.pt"), str(tmp_path / "data"), 3
    )  # fmt: skip
    assert config_hash(far) == config_hash(config)


def test_ones_own_images_in_another_directory_are_another_job():
    one = Config(data="folder", root="cats")
    other = dataclasses.replace(one, root="dogs")
    assert config_hash(one) != config_hash(other)
    assert stage_hash(one, "baseline") != stage_hash(other, "baseline")
    assert config_hash(Config(root="here")) == config_hash(Config(root="there"))
