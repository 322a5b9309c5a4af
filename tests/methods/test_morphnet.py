"""MorphNet: what a channel costs, by hand; the expansion meets the budget; a whole run."""

import dataclasses

import pytest
import torch
from torch.optim import SGD

import dafp
from dafp.errors import TrainingError
from dafp.methods import Task, morphnet
from dafp.network.model_info import info_of
from dafp.runs.pipeline import run
from dafp.selection import removed_share
from dafp.selection.targets import reach
from dafp.training.config import Config, Schedule
from dafp.training.loop import NoProgress
from support.tiny_runs import StopError, use_tiny_data
from support.training import graph_of, tiny_data, tiny_net

CONFIG = Config(
    model="resnet8", width=0.5, method="morphnet", batch_size=16, threads=1,
    baseline=Schedule(0), sparse=Schedule(4, 0.05, ()), finetune=Schedule(1, 0.05),
)  # fmt: skip


def task_of(**settings):
    config = dataclasses.replace(CONFIG, **settings)
    torch.manual_seed(0)
    net = dafp.models.build(config.model, classes=4, width=config.width)
    for name, scale in net.named_parameters():
        if "bn" in name and name.endswith("weight"):
            torch.nn.init.uniform_(scale, 0.5, 1.5)
    return Task(net, graph_of(net, residual=config.residual), config, tiny_data())


def amount(model, graph, unit):
    whole = dafp.cost(model, torch.zeros(1, 3, 8, 8))
    return {"filters": graph.filters, "params": whole.params, "macs": whole.macs}[unit]


def test_a_channel_costs_its_filter_and_what_the_living_channels_behind_it_read():
    """Convolutions of 3×3 at 8×8, 3 → 6 → 8 channels, then 8 → 4 linear; two BN scales are zero."""
    net = tiny_net()
    task = Task(net, graph_of(net), Config(unit="macs"), tiny_data())
    with torch.no_grad():
        net[1].weight[1] = 0
        net[4].weight[[2, 5]] = 0
    costs = morphnet.costs_now(net, task.graph, task)
    assert costs == {"0": 9 * 64 * (3 + 6), "3": 9 * 64 * 5 + 4}
    task = dataclasses.replace(task, config=Config(unit="params"))
    costs = morphnet.costs_now(net, task.graph, task)
    assert costs == {"0": 9 * (3 + 6) + 2, "3": 9 * 5 + 2 + 4}
    task = dataclasses.replace(task, config=Config(unit="filters"))
    assert morphnet.costs_now(net, task.graph, task) == {"0": 1, "3": 1}


def test_shrinking_aims_at_half_of_what_the_target_leaves():
    task = task_of(target=0.5, unit="macs")
    assert morphnet.shrink_target(task) == 0.75
    optimizer = SGD(task.model.parameters(), 0.05)
    hook = morphnet.train(task, optimizer)
    for parameter in task.model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for _ in range(round(0.8 * hook.steps)):
        optimizer.step()
    assert hook.reached() == pytest.approx(0.75, abs=0.06)  # few and coarse channels


def test_a_target_that_can_be_reached_is_shrunk_to_itself_if_less_cannot_be():
    """Inputs of residual streams, which morphnet does not prune, do not count as reachable."""
    task = task_of(model="preresnet11", target=0.5, unit="macs", width=1.0)
    assert {group.kind for group in task.graph.groups} == {"filter", "selection"}
    most = reach(task.graph, "macs", kinds=("filter",))
    assert most + 0.005 < reach(task.graph, "macs")
    between = (most + reach(task.graph, "macs")) / 2
    config = dataclasses.replace(task.config, target=1 - 2 * (1 - between))
    task = dataclasses.replace(task, config=config)
    assert morphnet.shrink_target(task) == config.target
    removed = removed_share(task.graph, task.graph.resolve(morphnet.plan(task)), "macs")
    assert removed == pytest.approx(config.target, abs=0.02)


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
@pytest.mark.parametrize("residual", ["keep", "couple"])
def test_the_expanded_network_spends_the_budget_by_one_factor(unit, residual):
    task = task_of(unit=unit, residual=residual, width=1.0)
    shrunk = task.graph.resolve(morphnet.plan(task))
    wider, plan = morphnet.expand(task, shrunk)
    small = dafp.prune(wider.model, wider.graph, plan)
    left = sum(len(plan.keep[g.name]) for g in wider.graph.groups if g.kind == "filter")
    budget = amount(task.model, task.graph, unit) / 2
    spent = left if unit == "filters" else amount(small, wider.graph, unit)
    assert 0.96 * budget <= spent <= budget
    factor = info_of(small).arguments["width"] / task.config.width
    assert 1.2 < factor <= 2
    for name, channels in shrunk.keep.items():
        assert abs(len(plan.keep[name]) - factor * len(channels)) < 1.5  # sizes are rounded, too


def test_the_expanded_network_has_the_widths_that_the_run_is_told():
    task = task_of(round_to=4, min_channels=3, unit="macs", width=1.0, residual="couple")
    wider, plan = morphnet.expand(task, task.graph.resolve(morphnet.plan(task)))
    sizes = {group.name: group.size for group in wider.graph.groups}
    widths = {name: len(kept) for name, kept in plan.keep.items()}
    assert all(width % 4 == 0 or width == sizes[name] for name, width in widths.items())
    assert any(width < sizes[name] for name, width in widths.items())
    left = wider.graph.predict(wider.graph.flags(plan)).macs / task.graph.whole.macs
    assert 0.35 < left <= 0.5  # widths are rounded down


@pytest.mark.parametrize("setting", [{"repair": True}, {"after": "scratch-E"}])
def test_settings_that_concern_the_weights_of_pruned_networks_are_refused(setting, tmp_path):
    with pytest.raises(TrainingError, match=f"{next(iter(setting))}=.* has no place in morphnet"):
        run(dataclasses.replace(CONFIG, **setting), tmp_path / "run")


def test_a_network_without_a_width_is_refused_before_any_training(monkeypatch, tmp_path):
    use_tiny_data(monkeypatch)
    own = dataclasses.replace(CONFIG, model="support.training:users_net", width=1.0)
    with pytest.raises(TrainingError, match="users_net' has no argument width"):
        run(own, tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Stopped(NoProgress):
    def epoch(self, row) -> None:
        if (row["stage"], row["epoch"]) == ("sparse", 2):
            raise StopError


def test_a_run_ends_in_a_trained_network_of_the_budget_and_a_restart_gives_the_same(
    monkeypatch, tmp_path
):
    use_tiny_data(monkeypatch)
    config = dataclasses.replace(CONFIG, unit="macs", baseline=Schedule(1, 0.05))
    result = run(config, tmp_path / "whole")
    stages = {stage["stage"]: stage for stage in result["stages"]}
    left = stages["finetuned"]["macs"] / stages["baseline"]["macs"]
    assert 0.47 <= left <= 0.5
    with pytest.raises(StopError):
        run(config, tmp_path / "stopped", Stopped())
    run(config, tmp_path / "stopped")
    for file in ("plan.json", "model.safetensors"):
        again = (tmp_path / "stopped" / file).read_bytes()
        assert again == (tmp_path / "whole" / file).read_bytes()
    loaded = dafp.load(tmp_path / "whole" / "model.safetensors")  # built by its own wider builder
    assert dafp.cost(loaded, torch.zeros(1, 3, 8, 8)).macs == stages["finetuned"]["macs"]
