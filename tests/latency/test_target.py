"""Latency as a target: the table of layers, what it predicts, and the search that measures."""

import json
import math

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dafp
from dafp import cli, selection
from dafp.cli.target_options import Target, parse_target
from dafp.errors import BenchError, PlanError, TargetError
from dafp.graph.plan import PruningPlan
from dafp.latency import Timing, bench, layer_table, pair_timing, to_latency
from dafp.latency import search as searching
from dafp.latency.layer_calls import LayerCall, layers_of, run_of
from dafp.latency.layer_table import Table
from dafp.latency.search import search, until_clear
from dafp.latency.target import predicted_share
from support import zoo

LAYER = LayerCall((3, 3), (1, 1), (1, 1), (1, 1), 1, (8, 8), 64, 64)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "dafp" / "latency"


def macs(layer: LayerCall) -> float:
    groups = layer.groups or layer.outputs
    return layer.activations * layer.inputs // groups * math.prod(layer.kernel)


def measures(monkeypatch: pytest.MonkeyPatch, function) -> None:
    """Layers take as long as this function returns."""
    monkeypatch.setattr(Table, "_measure", lambda self, layer: float(function(layer)))


# ---- layers --------------------------------------------------------------------------------------


def test_layers_are_found_with_all_that_their_time_depends_on():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, groups=8),
        nn.Flatten(), nn.Linear(32, 5),
    )  # fmt: skip
    first, second, third = layers_of(model, torch.randn(2, 3, 8, 8))
    assert first == LayerCall((3, 3), (2, 2), (1, 1), (1, 1), 1, (8, 8), 3, 8, "0.weight")
    assert (second.groups, second.image, second.activations) == (0, (4, 4), 8 * 2 * 2)
    assert (third.kernel, third.inputs, third.outputs, third.activations) == ((), 32, 5, 5)


@pytest.mark.parametrize("runtime", ["eager", "onnx"])
@pytest.mark.parametrize("name", ["plain", "depthwise", "grouped", "conv1d", "mlp"])
def test_each_layer_runs_by_itself(name, runtime):
    if runtime == "onnx":
        pytest.importorskip("onnxruntime")
    net = zoo.BY_NAME[name]
    for layer in layers_of(net.model(), net.example()):
        out = run_of(layer, runtime, batch=2, threads=1)()
        assert (
            torch.as_tensor(out[0] if runtime == "onnx" else out).numel() == 2 * layer.activations
        )


# ---- the table -----------------------------------------------------------------------------------


def test_between_points_of_the_grid_the_table_is_linear(monkeypatch):
    measures(monkeypatch, lambda layer: layer.inputs * layer.outputs)
    asked = Table("eager", 1, 1)
    assert asked.seconds(LAYER, 40, 20) == pytest.approx(800)
    assert asked.measured == 4  # the corners around it


def test_what_was_measured_is_read_from_the_cache_by_the_next_process(monkeypatch, cache):
    measures(monkeypatch, lambda layer: 7.0)
    first = Table("eager", 1, 1)
    first.point(LAYER, 64, 64)
    first.save()
    measures(monkeypatch, lambda layer: 9.0)
    again, other = Table("eager", 1, 1), Table("eager", 2, 1)
    assert (again.point(LAYER, 64, 64), again.measured) == (7.0, 0)
    assert (other.point(LAYER, 64, 64), other.measured) == (9.0, 1)
    assert len(list(cache.iterdir())) == 1


def test_another_machine_measures_again(monkeypatch):
    measures(monkeypatch, lambda layer: 7.0)
    first = Table("eager", 1, 1)
    first.point(LAYER, 64, 64)
    first.save()
    monkeypatch.setattr(layer_table, "machine", lambda: ("another processor", "2.0"))
    measures(monkeypatch, lambda layer: 9.0)
    assert Table("eager", 1, 1).point(LAYER, 64, 64) == 9.0


def test_processors_of_one_name_are_distinguished(monkeypatch, tmp_path):
    found = []
    for model in (1, 17):
        info = tmp_path / "cpuinfo"
        first = f"cpu family\t: 25\nmodel\t\t: {model}\nmodel name\t: AMD EPYC\nstepping\t: 1"
        info.write_text(f"{first}\n\n{first}\n")
        monkeypatch.setattr(layer_table, "_CPUINFO", info)
        found.append(layer_table.machine()[0].partition(" × ")[0])
    assert found == ["AMD EPYC 25 1 1", "AMD EPYC 25 17 1"]


def test_a_damaged_cache_is_as_good_as_none(monkeypatch, cache):
    measures(monkeypatch, lambda layer: 7.0)
    first = Table("eager", 1, 1)
    first.point(LAYER, 64, 64)
    first.save()
    (file,) = cache.iterdir()
    file.write_text('{"points": [[1')
    assert Table("eager", 1, 1).point(LAYER, 64, 64) == 7.0


@pytest.mark.parametrize(
    ("cost", "step"),
    [
        (lambda layer: math.ceil(layer.outputs / 8), 8),  # stairs of eight
        (lambda layer: math.ceil(layer.outputs / 4), 4),
        (lambda layer: layer.outputs, 1),  # every channel counts
        (lambda layer: 1.0, 16),  # none counts
    ],
)
def test_widths_are_rounded_to_the_stairs_that_the_layers_show(monkeypatch, cost, step):
    measures(monkeypatch, cost)
    assert Table("eager", 1, 1).round_to([LAYER]) == step


def test_a_real_layer_takes_time():
    assert 1e-6 < Table("eager", 1, 1).point(LAYER, 64, 64) < math.inf


# ---- prediction ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["plain", "depthwise", "grouped", "U-Net"])
def test_where_time_is_macs_the_prediction_is_the_share_of_macs(name, monkeypatch):
    measures(monkeypatch, macs)
    net = zoo.BY_NAME[name]
    model, example = net.model(), net.example()[:1]
    graph = dafp.trace(model, example)
    plan = graph.resolve(selection.uniform(dafp.criteria.l1_norm(model, graph), 0.5))
    share = predicted_share(graph, layers_of(model, example), Table("eager", 1, 1), whole=0.0)
    assert share(plan) == pytest.approx(selection.removed_share(graph, plan, "macs"), abs=0.02)


def test_what_layers_do_not_explain_goes_with_the_activations(monkeypatch):
    measures(monkeypatch, macs)
    model, example = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 4, 1)), torch.randn(1, 3, 4, 4)
    graph = dafp.trace(model, example)
    plan = graph.resolve(PruningPlan({"0": (0, 1, 2, 3)}))
    # 384 + 512 multiply-adds, half of which stay; 896 more seconds for 192 activations, 128 stay
    share = predicted_share(graph, layers_of(model, example), Table("eager", 1, 1), whole=1792.0)
    assert share(plan) == pytest.approx(1 - (448 + 896 * 128 / 192) / 1792)


# ---- the search ----------------------------------------------------------------------------------


def timed(left: float) -> tuple[Timing, Timing]:
    return tuple(Timing((s,) * 9, (1.0,) * 9) for s in (1.0, left))


def choose(aim: float, round_to: int) -> PruningPlan:
    """A plan that keeps 1 − aim of 1000 channels, in steps."""
    kept = round(1000 * (1 - aim) / round_to) * round_to
    return PruningPlan({"layer": tuple(range(kept))})


@pytest.mark.parametrize("wanted", [0.2, 0.5, 0.6])
@pytest.mark.parametrize("removes", [0.7, 1.0, 1.4])
def test_the_aim_is_corrected_until_the_measurement_is_right(wanted, removes):
    attempts = search(
        choose, lambda plan: timed(1 - removes * (1 - len(plan.keep["layer"]) / 1000)), wanted, 1
    )
    assert attempts[-1].left == pytest.approx(1 - wanted, rel=searching.ENOUGH)
    assert len(attempts) <= 5


def test_steps_that_are_too_coarse_are_halved():
    attempts = search(choose, lambda plan: timed(len(plan.keep["layer"]) / 1000), 0.45, 400)
    assert attempts[-1].left == pytest.approx(0.55, rel=searching.ENOUGH)
    assert attempts[0].round_to == 400
    assert attempts[-1].round_to < 400


def test_steps_that_the_user_asked_for_are_not_halved():
    attempts = search(
        choose, lambda plan: timed(len(plan.keep["layer"]) / 1000), 0.45, 400, halve=False
    )
    assert {attempt.round_to for attempt in attempts} == {400}


@pytest.mark.parametrize(
    ("left", "times"),
    [
        ([(0.6,) * 9], 1),  # far off: seen at once
        ([(0.51,) * 9] * 2, 2),  # near, twice
        ([(0.5,) * 9, *[(0.6,) * 9] * 3], 4),  # right by chance
        ([(0.4, 0.6) * 4 + (0.5,)] * searching.TIMES, searching.TIMES),  # too noisy to tell
    ],
)
def test_a_plan_is_measured_until_it_is_clear_whether_it_is_near(left, times):
    answers = iter(left)
    before, after = until_clear(
        lambda: (timed(1.0)[0], Timing(next(answers), (1.0,) * 9)), wanted=0.5
    )
    assert len(before.samples) == len(before.shares) == 9 * times
    assert after.samples == sum(left, ())


def fake_clock(monkeypatch: pytest.MonkeyPatch, seconds) -> None:
    """A model takes as long as this function of it returns."""
    monkeypatch.setattr(pair_timing, "runner", lambda model, *_, **__: lambda: seconds(model))
    monkeypatch.setattr(
        pair_timing,
        "by_turns",
        lambda runs, _: {name: Timing((run(),) * 9, (1.0,) * 9) for name, run in runs.items()},
    )


def traced(name: str = "preresnet20"):
    torch.manual_seed(0)
    model, example = dafp.models.build(name, width=0.5).eval(), torch.randn(1, 3, 16, 16)
    graph = dafp.trace(model, example)
    return model, graph, dafp.criteria.l1_norm(model, graph), example


def test_the_plan_removes_half_of_the_time_where_norms_and_calls_take_time_too(monkeypatch):
    model, graph, scores, example = traced()
    full = dafp.cost(model, example).macs
    measures(monkeypatch, macs)
    fake_clock(monkeypatch, lambda m: dafp.cost(m, example).macs + 0.3 * full)
    done = to_latency(model, graph, scores, example, 0.5)
    left = dafp.cost(dafp.prune(model, graph, done.plan), example).macs + 0.3 * full
    assert left / (1.3 * full) == pytest.approx(0.5, rel=0.05)
    assert done.removed == pytest.approx(1 - left / (1.3 * full))


@pytest.mark.parametrize("least", [1, 6])
@pytest.mark.parametrize(("given", "multiple"), [("auto", 4), (2, 2), (1, 1)])
def test_widths_for_a_latency_are_what_the_layers_like_or_what_was_asked(
    given, multiple, least, monkeypatch
):
    model, graph, scores, example = traced()
    measures(monkeypatch, lambda layer: macs(layer) * math.ceil(layer.outputs / 4) / layer.outputs)
    fake_clock(monkeypatch, lambda m: dafp.cost(m, example).macs)
    options = {"round_to": given, "min_channels": least}
    done = to_latency(model, graph, scores, example, 0.4, **options)
    widths = {len(kept) for kept in done.plan.keep.values()}
    assert all(width % done.round_to == 0 and width >= least for width in widths)
    assert len(widths) > 2
    assert done.attempts[0].round_to == multiple  # "auto" is halved where it is too coarse
    assert given in ("auto", done.round_to)
    assert done.removed == pytest.approx(0.4, abs=0.03)


def test_a_target_that_no_plan_meets_is_refused_with_what_was_measured(monkeypatch):
    model, graph, scores, example = traced()
    measures(monkeypatch, macs)
    fake_clock(monkeypatch, lambda m: 1.0)  # nothing makes it quicker
    with pytest.raises(TargetError, match=r"left 1\.000 of the time instead of 0\.700"):
        to_latency(model, graph, scores, example, 0.3)


def test_a_table_that_promises_too_little_does_not_stop_the_search(monkeypatch):
    model, graph, scores, example = traced()
    full = dafp.cost(model, example).macs
    measures(monkeypatch, lambda layer: 1.0)  # as if no width mattered
    whole = [10.0 * full]  # and the network were slow when it was measured first

    def seconds(m):
        return whole.pop() if whole else dafp.cost(m, example).macs

    fake_clock(monkeypatch, seconds)
    done = to_latency(model, graph, scores, example, 0.5)
    assert done.removed == pytest.approx(0.5, abs=0.025)


@pytest.mark.parametrize(
    ("name", "value"),
    [("batch", 0), ("batch", -1), ("batch", 1.5), ("threads", 0), ("threads", -1), ("seconds", 0),
     ("seconds", float("nan")), ("seconds", float("inf"))],
)  # fmt: skip
def test_a_setting_that_cannot_be_measured_is_refused_by_target_and_bench(name, value):
    model, graph, scores, example = traced()
    with pytest.raises(BenchError, match=f"{name}={value}"):
        to_latency(model, graph, scores, example, **{name: value})
    several = {"batches" if name == "batch" else name: value if name == "seconds" else [value]}
    with pytest.raises(BenchError, match=f"{name}={value}"):
        list(bench({"a": model}, example, **several))


@pytest.mark.parametrize("broken", ["folder", "file"])
def test_a_cache_that_cannot_be_written_costs_only_a_warning(monkeypatch, tmp_path, caplog, broken):
    if broken == "folder":
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
        (tmp_path / "file").touch()
    else:
        monkeypatch.setattr("dafp.storage.atomic_write.os.replace", refuse)
    model, graph, scores, example = traced()
    measures(monkeypatch, macs)
    fake_clock(monkeypatch, lambda m: dafp.cost(m, example).macs)
    done = to_latency(model, graph, scores, example, 0.5)
    assert done.removed == pytest.approx(0.5, abs=0.025)
    (message,) = caplog.messages
    assert "were not kept in" in message


def refuse(*args):
    raise PermissionError(13, "Permission denied")


def test_only_runtimes_with_a_table_are_targets():
    with pytest.raises(BenchError, match="choose 'eager' or 'onnx'"):
        to_latency(*traced(), runtime="compile")


# ---- the command ---------------------------------------------------------------------------------


def test_a_target_is_written_as_unit_and_share():
    assert parse_target("latency=0.5") == Target("latency", share=0.5)


@pytest.mark.parametrize("text", ["latency", "speed=0.5", "macs=half", "=0.5"])
def test_what_is_no_target_is_refused_with_how_to_write_one(text):
    with pytest.raises(PlanError, match=r"e\.g\. macs=0\.5"):
        parse_target(text)


def prune_command(*options: str) -> dict:
    result = CliRunner().invoke(
        cli.app, ["prune", "preresnet11", "--criterion", "random", "--json", *options]
    )
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_target_and_ratio_with_unit_are_two_ways_to_say_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    new = prune_command("--target", "macs=0.4")
    assert new["plan"]["keep"] == prune_command("--ratio", "0.4", "--unit", "macs")["plan"]["keep"]


@pytest.mark.parametrize("other", [("--ratio", "0.5"), ("--unit", "macs")])
def test_a_target_beside_ratio_or_unit_is_refused(tmp_path, monkeypatch, other):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(cli.app, ["prune", "preresnet11", "--target", "macs=0.4", *other])
    assert isinstance(done.exception, PlanError)
    assert "leave --ratio and --unit out" in str(done.exception)
    assert not list(tmp_path.iterdir())


def test_the_command_reports_what_was_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    measures(monkeypatch, macs)
    fake_clock(monkeypatch, lambda m: dafp.cost(m, torch.randn(1, 3, 32, 32)).macs)
    said = prune_command("--target", "latency=0.5")["latency"]
    assert said["removed"] == pytest.approx(0.5, abs=0.025)
    assert said["doubt"] == ""


@pytest.mark.parametrize("target", [0.0, 1.0, 1.5, float("nan")])
def test_a_share_of_the_time_that_is_none_is_refused_before_anything_is_measured(target):
    with pytest.raises(PlanError, match=r"outside \(0, 1\)"):
        to_latency(*traced(), target, seconds=0.01)
