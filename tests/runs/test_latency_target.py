"""Runs that remove latency: what the plan meets, what is kept, and what is refused.

The clock of these tests counts multiply-adds, so that no test depends on the machine.
"""

import dataclasses
import json

import pytest
import torch

import dafp
from dafp.choices import NOT_FOR_LATENCY
from dafp.errors import FileError, PlanError, TargetError, TrainingError
from dafp.latency import Timing, pair_timing
from dafp.latency.layer_table import Table
from dafp.methods import METHODS
from dafp.runs import latency_target
from dafp.runs.pipeline import run
from dafp.sweeps import SweepPaths, sweep
from dafp.training.run_directory import Paths
from support import tiny_runs
from support.slow import slow_except
from support.tiny_runs import StopError, Unplugged, outcome, use_tiny_data

CONFIG = dataclasses.replace(
    tiny_runs.CONFIG, model="support.training:wider_net", unit="latency", target=0.4,
    sparse=tiny_runs.CONFIG.finetune,
)  # fmt: skip
EXAMPLE = torch.zeros(1, 3, 8, 8)
FIXED = 0.2  # of the time of the whole network: it does not depend on widths
EVENTS = 1 + 3 + 3 + 2 + 3  # measuring, two stages, pruning and measuring, fine-tuning


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    use_clock_of_macs(monkeypatch, tmp_path)


def use_clock_of_macs(patch, folder):
    use_tiny_data(patch)
    patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    patch.setattr(Table, "_measure", lambda self, layer: float(layer.outputs))
    patch.setattr(pair_timing, "runner", lambda model, *_, **__: seconds(model))
    patch.setattr(pair_timing, "by_turns", timed)


def timed(runs, _):
    return {name: Timing((run,) * 9, (1.0,) * 9) for name, run in runs.items()}


def seconds(model) -> float:
    whole = 16 * 27 * 64 + 24 * 144 * 64 + 96
    return (dafp.cost(model, EXAMPLE).macs + FIXED * whole) / whole / 1.2 * 10e-3


def left(out) -> float:
    """The seconds that the final model of a run takes."""
    return seconds(dafp.load(Paths(out).model, trust=True))


@pytest.mark.parametrize(
    "name",
    slow_except(
        ("dafp", "slm", "l1-norm", "reconstruct"),
        [name for name in METHODS if name not in NOT_FOR_LATENCY],
        reason="a run each",
    ),
)
def test_the_final_model_of_every_method_takes_the_share_of_the_time_that_was_asked_for(
    name, tmp_path
):
    result = run(dataclasses.replace(CONFIG, method=name), tmp_path / "run")
    assert left(tmp_path / "run") / 10e-3 == pytest.approx(0.6, rel=0.05)
    found = result["latency"]
    assert found["removed"] == pytest.approx(1 - left(tmp_path / "run") / 10e-3)
    assert (found["share"], found["runtime"], found["doubt"]) == (0.4, "eager", "")
    assert result["sparsity"]["unit"] == "macs"
    assert result["sparsity"]["target"] > 0.42  # a fifth of the time does not depend on widths


def test_an_amount_that_may_be_left_is_a_share_of_what_is_measured(tmp_path):
    result = run(dataclasses.replace(CONFIG, left=7e-3), tmp_path / "run")
    assert result["latency"]["share"] == pytest.approx(0.3)
    assert left(tmp_path / "run") == pytest.approx(7e-3, rel=0.05)
    history = dafp.load(Paths(tmp_path / "run").model, trust=True)._dafp_info.history
    assert (history[-1]["unit"], history[-1]["target"]) == ("latency", pytest.approx(0.3))


# ---- interrupted ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    out = tmp_path_factory.mktemp("latency") / "whole"
    with pytest.MonkeyPatch.context() as patch:
        use_clock_of_macs(patch, out.parent)
        progress = Unplugged()
        run(CONFIG, out, progress)
    assert progress.seen == EVENTS
    return out


@pytest.mark.parametrize(
    "event", slow_except((1, 5, 9, 10), range(1, EVENTS + 1), reason="a run each")
)
def test_a_run_killed_anywhere_goes_on_to_the_same_plan(event, whole, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        run(CONFIG, out, Unplugged(event))
    measured = Paths(out).latency.exists()
    assert measured == (event > 1)
    if event > EVENTS - 3:  # the plan is there: nothing is measured again
        monkeypatch.setattr(pair_timing, "by_turns", None)
    run(CONFIG, out)
    assert outcome(out) == outcome(whole)
    assert Paths(out).latency.read_bytes() == Paths(whole).latency.read_bytes()


def test_what_was_measured_before_training_is_not_measured_again(whole, tmp_path, monkeypatch):
    out = tmp_path / "run"
    with pytest.raises(StopError):
        run(CONFIG, out, Unplugged(3))
    before = json.loads(Paths(out).latency.read_text())
    monkeypatch.setattr(latency_target, "_before_training", None)
    run(CONFIG, out)
    assert json.loads(Paths(out).latency.read_text()).items() >= before.items()


# ---- refused -------------------------------------------------------------------------------------


def test_a_latency_out_of_reach_is_refused_before_training(tmp_path):
    with pytest.raises(TargetError, match=r"target=0\.9 of latency was not met"):
        run(dataclasses.replace(CONFIG, target=0.9), tmp_path / "run")  # 0.17 is the floor
    assert not (tmp_path / "run").exists()


def test_more_time_than_the_network_takes_is_nothing_to_remove(tmp_path):
    with pytest.raises(PlanError, match="left=20 ms of latency: the network has only 10 ms"):
        run(dataclasses.replace(CONFIG, left=20e-3), tmp_path / "run")


def test_a_plan_that_misses_leaves_what_was_trained_and_the_same_command_measures_again(
    tmp_path, monkeypatch
):
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(latency_target, "_after_training", missed)
        with pytest.raises(TargetError, match=r"is kept in .*run: the same command measures again"):
            run(CONFIG, out)
    assert Paths(out).checkpoint("sparse").exists()
    run(CONFIG, out)
    assert left(out) / 10e-3 == pytest.approx(0.6, rel=0.05)


def missed(*args):
    raise TargetError("not met")


def test_a_damaged_file_of_measurements_is_refused_by_name(tmp_path):
    with pytest.raises(StopError):
        run(CONFIG, tmp_path / "run", Unplugged(3))
    Paths(tmp_path / "run").latency.write_text("{")
    with pytest.raises(FileError, match=r"latency\.json cannot be read.*delete it"):
        run(CONFIG, tmp_path / "run")


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"method": "sfp"}, "method='sfp' decides in training which channels go"),
        ({"move_p": False}, "needs move_p=true"),
        ({"method": "l1-norm", "steps": 2}, "prunes in one step, not in steps=2"),
        ({"runtime": "compile"}, "runtime='compile' must be one of 'eager', 'onnx'"),
        ({"latency_batch": 0}, "latency_batch=0 must be at least 1"),
        ({"unit": "macs", "runtime": "onnx"}, "concern unit='latency'"),
    ],
)
def test_settings_that_do_not_go_with_latency_are_refused(settings, reason):
    with pytest.raises(TrainingError, match=reason):
        dataclasses.replace(CONFIG, **settings)


def test_results_of_one_machine_are_no_results_of_a_sweep(tmp_path):
    with pytest.raises(TrainingError, match="measured on one machine"):
        sweep([CONFIG], SweepPaths(tmp_path, tmp_path))
