"""Runs: whole, interrupted anywhere, started twice, out of disk, and with damaged files."""

import dataclasses
import errno
import fcntl
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dafp
from dafp.errors import DafpError, FileError, TrainingError
from dafp.files import model_file
from dafp.runs import pipeline, run_log
from dafp.runs.pipeline import run
from dafp.training.config import Schedule
from dafp.training.loop import NoProgress
from dafp.training.run_directory import Paths, read_config
from support.slow import slow_except
from support.tiny_runs import (
    CONFIG,
    StopError,
    Unplugged,
    outcome,
    uninterrupted,
    use_tiny_data,
)
from support.training import tiny_data, users_net

FILES = {
    "config.toml", "metrics.jsonl", "plan.json", "pruned.safetensors", "model.safetensors",
    "baseline.safetensors", "result.json", "baseline.checkpoint",
    "sparse.checkpoint", "finetune.checkpoint", ".lock",
}  # fmt: skip


EVENTS = 3 + 8 + 1


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    use_tiny_data(monkeypatch)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An uninterrupted run."""
    out = tmp_path_factory.mktemp("runs") / "whole"
    result, events = uninterrupted(CONFIG, out)
    assert events == EVENTS
    return out, result


def contents(out: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in out.iterdir()}


# ---- a whole run ---------------------------------------------------------------------------------


def test_a_run_leaves_these_files_and_no_others(whole):
    assert {p.name for p in whole[0].iterdir()} == FILES


def test_the_result_tells_what_the_model_file_holds(whole):
    out, result = whole
    torch.manual_seed(0)
    model = dafp.load(Paths(out).model, pipeline.make_model(CONFIG, 4)).eval()
    by_name = {stage["stage"]: stage for stage in result["stages"]}
    assert list(by_name) == ["baseline", "sparse", "pruned", "finetuned"]
    counted = dafp.cost(model, torch.zeros(1, 3, 8, 8))
    assert (counted.params, counted.macs) == (
        by_name["finetuned"]["params"], by_name["finetuned"]["macs"],
    )  # fmt: skip
    assert by_name["finetuned"]["filters"] == 10  # half of 8 + 12
    right = total = 0
    with torch.no_grad():
        for x, y in tiny_data().batches("test"):
            right, total = right + int((model(x).argmax(1) == y).sum()), total + len(y)
    assert by_name["finetuned"]["accuracy"] == right / total


def test_networks_are_timed_together_at_the_end_so_that_their_latencies_compare(
    tmp_path, monkeypatch
):
    sizes = []

    def by_size(models, example, threads):
        sizes.append([sum(p.numel() for p in model.parameters()) for model in models])
        return [
            {"threads": threads, "latency_s": float(size), "speedup": sizes[-1][0] / size,
             "low": 1.0, "high": 2.0, "doubt": ""}
            for size in sizes[-1]
        ]  # fmt: skip

    monkeypatch.setattr(run_log, "speeds", by_size)
    result = run(CONFIG, tmp_path / "run")
    original, pruned = sizes[0]  # the two networks there are, together
    assert all(row == sizes[0] for row in sizes)
    assert [row["threads"] for row in result["stages"][0]["speeds"]] == [1]
    assert pruned < 0.6 * original
    assert [stage["latency_s"] for stage in result["stages"]] == [original] * 2 + [pruned] * 2


def test_the_reported_accuracy_is_that_of_the_last_epoch_with_the_best_on_validation_beside(whole):
    out, result = whole
    rows = outcome(out)["metrics"]
    for stage in result["stages"]:
        mine = [row for row in rows if row["stage"] == stage["stage"].removesuffix("d")]
        if not mine:
            assert stage["stage"] == "pruned"
            continue
        assert stage["accuracy"] == mine[-1]["test_accuracy"]
        best = max(mine, key=lambda row: row["val_accuracy"])  # the first of equals
        assert stage["best_val_epoch"] == best["epoch"]
        assert stage["best_val_accuracy"] == best["val_accuracy"]
        assert stage["best_val_test_accuracy"] == best["test_accuracy"] is not None


def test_the_metrics_have_a_row_per_epoch_in_order(whole):
    rows = outcome(whole[0])["metrics"]
    assert [(row["stage"], row["epoch"]) for row in rows] == [
        *(("baseline", n) for n in (1, 2)), *(("sparse", n) for n in (1, 2, 3, 4)),
        *(("finetune", n) for n in (1, 2)),
    ]  # fmt: skip
    assert {"penalty", "sparsity", "target", "aim"} <= set(rows[2])


def test_the_plan_file_is_the_plan_of_the_pruned_model(whole):
    paths = Paths(whole[0])
    model = dafp.load(paths.pruned, pipeline.make_model(CONFIG, 4))
    assert dafp.plan_of(model).keep == dafp.PruningPlan.from_json(paths.plan.read_text()).keep


def test_the_same_command_again_returns_the_result_at_once_and_writes_nothing(whole):
    out, result = whole
    before = {p.name: p.stat().st_mtime_ns for p in out.iterdir() if p.name != ".lock"}
    progress = Unplugged()
    assert run(CONFIG, out, progress) == result
    assert progress.seen == 0
    assert before == {p.name: p.stat().st_mtime_ns for p in out.iterdir() if p.name != ".lock"}


def test_the_same_seed_gives_the_same_bits_in_another_directory(whole, tmp_path):
    run(CONFIG, tmp_path / "again")
    assert outcome(tmp_path / "again") == outcome(whole[0])


def test_another_seed_gives_another_model(whole, tmp_path):
    run(dataclasses.replace(CONFIG, seed=1), tmp_path / "other")
    assert outcome(tmp_path / "other")["model"] != outcome(whole[0])["model"]


def test_a_run_without_a_baseline_has_none(whole, tmp_path):
    result = run(dataclasses.replace(CONFIG, baseline=Schedule(0)), tmp_path / "run")
    assert [s["stage"] for s in result["stages"]] == ["sparse", "pruned", "finetuned"]
    mine, theirs = (model_file.read(Paths(p).model)[1] for p in (tmp_path / "run", whole[0]))
    assert mine.keys() == theirs.keys()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


@pytest.mark.parametrize("after", ["scratch-E", "scratch-B"])
def test_training_from_scratch_takes_as_many_epochs_or_as_many_multiply_adds(after, tmp_path):
    result = run(dataclasses.replace(CONFIG, after=after), tmp_path / "run")
    baseline, *_, last = result["stages"]
    assert last["stage"] == after
    rows = [row for row in outcome(tmp_path / "run")["metrics"] if row["stage"] == "scratch"]
    ratio = baseline["macs"] / last["macs"]
    assert ratio > 1.5
    assert len(rows) == (2 if after == "scratch-E" else math.ceil(2 * ratio))
    assert rows[0]["loss"] > 1.0  # ln 4 = 1.39: it knows nothing yet


# ---- interrupted ---------------------------------------------------------------------------------


def test_epochs_of_a_stage_that_is_still_running_are_on_disk(tmp_path):
    with pytest.raises(StopError):
        run(CONFIG, tmp_path / "run", Unplugged(5))  # baseline: 1 + 2 events, then sparse, epoch 1
    lines = Paths(tmp_path / "run").metrics.read_text().splitlines()
    found = [(row["stage"], row["epoch"]) for row in map(json.loads, lines)]
    assert found == [("baseline", 1), ("baseline", 2), ("sparse", 1)]


@pytest.mark.parametrize(
    "event", slow_except((1, 3, 6, 8, 10), range(1, EVENTS + 1), reason="two runs each")
)
def test_a_run_stopped_at_any_boundary_goes_on_to_the_same_bits(event, whole, tmp_path):
    with pytest.raises(StopError):
        run(CONFIG, tmp_path / "run", Unplugged(event))
    assert not Paths(tmp_path / "run").result.exists()
    run(CONFIG, tmp_path / "run")
    assert outcome(tmp_path / "run") == outcome(whole[0])


def test_a_run_stopped_after_every_epoch_goes_on_to_the_same_bits(whole, tmp_path):
    class Impatient(NoProgress):
        def epoch(self, row) -> None:
            raise StopError

    for _ in range(8):  # an epoch further every time
        with pytest.raises(StopError):
            run(CONFIG, tmp_path / "run", Impatient())
    run(CONFIG, tmp_path / "run", Impatient())
    assert outcome(tmp_path / "run") == outcome(whole[0])


# of 16: configuration, 2 checkpoints, metrics, 4 checkpoints, metrics, plan, pruned, 2 checkpoints,
# metrics, model, result
@pytest.mark.parametrize(
    "number",
    slow_except((0, 2, 6, 9, 15), (0, 2, 3, 6, 8, 9, 10, 12, 14, 15), reason="two runs each"),
)
def test_a_full_disk_is_reported_and_loses_nothing(number, whole, tmp_path, monkeypatch):
    out, written = tmp_path / "run", []
    real = os.fsync

    def fsync(descriptor):
        if len(written) == number:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(contents(out))
        real(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(model_file.os, "fsync", fsync)
        with pytest.raises(FileError, match=r"cannot write .*run/.*: No space left on device"):
            run(CONFIG, out)
    assert out.exists() == (number > 0)  # without its configuration the directory is given back
    left = contents(out) if number else {}
    assert not any(name.endswith(".writing") for name in left)
    for name, data in (written[-1] if written else {}).items():
        assert name in left or name.endswith(".writing")
        assert name.endswith((".lock", ".writing", ".checkpoint", ".jsonl")) or left[name] == data
    run(CONFIG, out)
    assert outcome(out) == outcome(whole[0])


def test_what_a_killed_writer_left_is_cleaned_up(whole, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    (out / ".sparse.checkpoint.4711.writing").write_bytes(b"half a file")
    run(CONFIG, out)
    assert {p.name for p in out.iterdir()} == FILES
    assert outcome(out) == outcome(whole[0])


# ---- refused -------------------------------------------------------------------------------------


def test_a_changed_configuration_is_refused_by_its_keys(whole):
    out, _ = whole
    before = contents(out)
    other = dataclasses.replace(CONFIG, target=0.4, sparse=Schedule(9, 0.05, ()))
    with pytest.raises(TrainingError) as error:
        run(other, out)
    assert "target: 0.5 → 0.4; sparse.epochs: 4 → 9" in str(error.value)
    assert "--out" in str(error.value)
    assert contents(out) == before
    assert read_config(out) == CONFIG


def test_a_second_process_in_the_directory_is_refused(whole):
    with open(whole[0] / ".lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(FileError, match="another process is running in"):
            run(CONFIG, whole[0])
    run(CONFIG, whole[0])


def test_a_file_where_the_directory_should_be_is_refused(tmp_path):
    (tmp_path / "run").write_text("something of mine")
    with pytest.raises(FileError, match=r"cannot use .*run for a run"):
        run(CONFIG, tmp_path / "run")
    assert (tmp_path / "run").read_text() == "something of mine"


def test_a_read_only_directory_is_refused(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(FileError, match=r"cannot use .*run for a run: Read-only file system"):
        run(CONFIG, tmp_path / "run")


@pytest.mark.parametrize("name", ["baseline", "sparse", "finetune"])
def test_a_damaged_checkpoint_is_refused_with_what_to_do_and_that_helps(name, whole, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    for file, data in contents(whole[0]).items():
        (out / file).write_bytes(data)
    Paths(out).result.unlink()
    damaged = bytearray(Paths(out).checkpoint(name).read_bytes())
    damaged[-100] ^= 1
    Paths(out).checkpoint(name).write_bytes(damaged)
    metrics = Paths(out).metrics.read_bytes()
    with pytest.raises(FileError, match=rf"{name}.checkpoint is damaged.*Delete it"):
        run(CONFIG, out)
    assert Paths(out).metrics.read_bytes() == metrics  # no epoch is forgotten
    Paths(out).checkpoint(name).unlink()
    run(CONFIG, out)
    assert outcome(out) == outcome(whole[0])


@pytest.mark.parametrize("content", [b"", b"{", b"\xff"])
def test_a_damaged_result_is_refused_and_can_be_computed_again(content, whole, tmp_path):
    out = tmp_path / "run"
    out.mkdir()
    for file, data in contents(whole[0]).items():
        (out / file).write_bytes(data)
    Paths(out).result.write_bytes(content)
    with pytest.raises(FileError, match=r"result.json cannot be read.*delete it"):
        run(CONFIG, out)
    Paths(out).result.unlink()
    run(CONFIG, out)
    assert outcome(out) == outcome(whole[0])


def test_weights_that_changed_since_a_run_was_begun_are_refused(tmp_path):
    out, file = tmp_path / "run", tmp_path / "start.pt"
    old, new = users_net(4).state_dict(), users_net(4).state_dict()
    torch.save(old, file)
    config = dataclasses.replace(CONFIG, weights=str(file))
    with pytest.raises(StopError):
        run(config, out, Unplugged(3))
    before = contents(out)
    torch.save(new, file)
    with pytest.raises(TrainingError, match=r"start.pt is not the weights that .*another --out"):
        run(config, out)
    assert contents(out) == before
    torch.save(old, file)
    assert run(config, out)["stages"][-1]["stage"] == "finetuned"


@pytest.mark.parametrize(
    "values",
    [{"target": 0.95}, {"model": "vgg12"}, {"keep": ("0", "3")}, {"weights": "nowhere.pt"},
     {"batch_size": 100}, {"keep": ("nothing",)}, {"method": "l1-norm", "target": 0.95},
     {"unit": "macs", "target": 0.99}],
    ids=str,
)  # fmt: skip
def test_what_cannot_work_is_refused_before_the_first_epoch(values, tmp_path):
    progress = Unplugged()
    with pytest.raises(DafpError):
        run(dataclasses.replace(CONFIG, **values), tmp_path / "run", progress)
    assert progress.seen == 0


# ---- killed --------------------------------------------------------------------------------------

VICTIM = """
import os, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from dafp.runs import pipeline
from support.tiny_runs import CONFIG
from support.training import tiny_data
pipeline.load_data = lambda *args, **kwargs: tiny_data()
left, fsync = int(sys.argv[2]), os.fsync
def killed(descriptor):
    global left
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    fsync(descriptor)
os.fsync = killed
pipeline.run(CONFIG, Path(sys.argv[1]))
"""


# of the same 16 files: an epoch of sparse training, the pruned model, the result
@pytest.mark.parametrize(
    "number", slow_except((5,), (5, 10, 15), reason="a new process imports torch")
)
def test_a_run_killed_while_it_writes_goes_on_to_the_same_bits(number, whole, tmp_path):
    """benchmarks/kill.py does this to the command itself, twenty times, at random moments."""
    out, here = tmp_path / "run", Path(__file__).parents[1]
    path = os.pathsep.join([str(Path(dafp.__file__).parents[1]), str(here)])
    victim = subprocess.run(
        [sys.executable, "-c", VICTIM, str(out), str(number)], check=False, timeout=600,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert victim.returncode == -signal.SIGKILL
    assert any(name.endswith(".writing") for name in contents(out))
    run(CONFIG, out)
    assert outcome(out) == outcome(whole[0])
    assert {p.name for p in out.iterdir()} == FILES


def test_a_tracker_gets_every_epoch_of_every_stage(tmp_path):
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    run(dataclasses.replace(CONFIG, tracker="tensorboard"), tmp_path / "run")
    log = events.EventAccumulator(str(next((tmp_path / "run").rglob("events.out*")).parent))
    log.Reload()
    rows = [
        json.loads(line) for line in Path(tmp_path, "run", "metrics.jsonl").read_text().splitlines()
    ]
    wanted = [row["sparsity"] for row in rows if row["stage"] == "sparse"]
    assert [e.value for e in log.Scalars("sparse/sparsity")] == pytest.approx(wanted)
    assert {f"{row['stage']}/loss" for row in rows} <= set(log.Tags()["scalars"])
