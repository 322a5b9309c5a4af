"""Schedules and averaged weights after pruning, as docs/own-tools.md continues them."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, Optimizer
from torch.optim import lr_scheduler as schedules
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import dafp

DRAW = torch.Generator().manual_seed(0)
X, Y = torch.randn(8, 3, 8, 8, generator=DRAW), torch.arange(8) % 4
SCHEDULES = {
    "steps": lambda optimizer: schedules.StepLR(optimizer, 4, 0.5),
    "milestones": lambda optimizer: schedules.MultiStepLR(optimizer, [2, 6]),
    "cosine": lambda optimizer: schedules.CosineAnnealingLR(optimizer, 12),
    "exponential": lambda optimizer: schedules.ExponentialLR(optimizer, 0.9),
    "a function": lambda optimizer: schedules.LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch)),
    "warm-up": lambda optimizer: schedules.LinearLR(optimizer, 0.1, total_iters=6),
    "one cycle": lambda optimizer: schedules.OneCycleLR(optimizer, 0.2, total_steps=12),
}


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12),
        nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 4),
    )  # fmt: skip


def step(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    cross_entropy(model(X), Y).backward()
    optimizer.step()


def pruned(model: nn.Module) -> tuple[nn.Module, dafp.ChannelGraph, dafp.PruningPlan]:
    graph = dafp.trace(model.eval(), X)
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(model, graph), 0.5)
    assert sum(map(len, plan.keep.values())) == 10
    return dafp.prune(model, graph, plan), graph, plan


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_continued_schedule_gives_the_rates_of_an_uninterrupted_one(name):
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = SCHEDULES[name](optimizer)
    for _ in range(5):
        step(model, optimizer)
        schedule.step()
    small, _, _ = pruned(model)
    carried = dafp.carry_over(optimizer, model, small)
    continued = SCHEDULES[name](carried)
    continued.load_state_dict(schedule.state_dict())
    for new, old in zip(carried.param_groups, optimizer.param_groups, strict=True):
        new["lr"] = old["lr"]
    rates: list[list[float]] = [[], []]
    for found, run, net_, one in (
        (rates[0], optimizer, model, schedule), (rates[1], carried, small, continued)
    ):  # fmt: skip
        for _ in range(6):
            found.append(run.param_groups[0]["lr"])
            step(net_, run)
            one.step()
    assert rates[1] == pytest.approx(rates[0], rel=1e-12)
    assert len(set(rates[0])) > 1


def test_averaged_weights_are_pruned_by_the_same_plan_and_go_on_as_the_average_of_all():
    model = net()
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    for _ in range(3):
        step(model, optimizer)
        average.update_parameters(model)
    small, graph, plan = pruned(model)
    small_average = AveragedModel(small, multi_avg_fn=get_ema_multi_avg_fn(0.5))
    cut = dafp.prune(average.module.eval(), graph, plan)
    small_average.module.load_state_dict(cut.state_dict())
    small_average.n_averaged.copy_(average.n_averaged)
    kept = list(plan.keep["0"])
    assert torch.equal(small_average.module[0].weight, average.module[0].weight[kept])
    before = small_average.module[0].weight.clone()
    assert not torch.equal(before, small[0].weight)
    with torch.no_grad():
        small[0].weight += 1.0
    small_average.update_parameters(small)
    expected = 0.5 * before + 0.5 * small[0].weight
    torch.testing.assert_close(small_average.module[0].weight, expected)
