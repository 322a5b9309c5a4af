"""Structured sparsity learning: the proximal step by hand, and which filters become zero."""

import pytest
import torch
from torch.optim import SGD

from dafp.methods import Task, ssl
from dafp.selection import removed_share
from dafp.training.config import Config, Schedule
from support.training import graph_of, images, step, tiny_data, tiny_net


def task_of(net, epochs=8, **settings):
    config = Config(
        method="ssl",
        batch_size=16,
        sparse=Schedule(epochs, 0.05, ()),
        **{"target": 0.5, **settings},
    )
    return Task(net, graph_of(net), config, tiny_data())


def test_the_factor_is_that_of_the_proximal_operator():
    """min over f of t·f·‖W‖ + ½·(f − 1)²·‖W‖² is at max(0, 1 − t/‖W‖)."""
    length = torch.tensor([4.0, 1.0, 0.5, 0.0])
    assert ssl.shortened(length, 1.0).tolist() == [0.75, 0.0, 0.0, 0.0]
    for size in (0.3, 2.0, 5.0):
        grid = torch.linspace(0, 1, 10001)
        cost = 0.7 * grid * size + 0.5 * (grid - 1).square() * size**2
        best = float(grid[cost.argmin()])
        assert float(ssl.shortened(torch.tensor(size), 0.7)) == pytest.approx(best, abs=1e-3)


def test_a_step_shortens_every_filter_by_rate_times_penalty_times_mean_length():
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.05)
    task = task_of(net)
    hook = ssl.GroupLasso(task, optimizer)
    hook.every = 100
    groups = hook.groups
    before = ssl.lengths(net, groups)
    direction = net[0].weight.detach().clone()
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    after = ssl.lengths(net, groups)
    for name, length in before.items():
        lost = 0.05 * hook.penalty * float(length.mean())
        assert lost > 0.01 * float(length.mean())
        torch.testing.assert_close(after[name], (length - lost).clamp(min=0))
    cosine = torch.cosine_similarity(net[0].weight.detach().flatten(1), direction.flatten(1))
    torch.testing.assert_close(cosine, torch.ones(6))


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
def test_without_a_loss_the_shortest_filters_are_zero_after_seven_tenths(unit):
    net = tiny_net(widths=(12, 16))
    task = task_of(net, unit=unit)
    optimizer = SGD(net.parameters(), 0.05)
    hook = ssl.GroupLasso(task, optimizer)
    due = {name: flags.clone() for name, flags in hook.due.items()}
    for _ in range(round(0.75 * hook.steps)):
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    for name, length in ssl.lengths(net, hook.groups).items():
        assert torch.equal(length == 0, due[name])
    plan = task.graph.resolve(ssl.plan(task))
    assert removed_share(task.graph, plan, unit) == pytest.approx(0.5, abs=0.05)


def test_zero_filters_stay_zero_and_keep_their_constant_output():
    net = tiny_net()
    task = task_of(net, epochs=2)
    optimizer = SGD(net.parameters(), 0.05, momentum=0.9)
    hook = ssl.GroupLasso(task, optimizer)
    x, y = images()
    net.train()
    for epoch in range(2):
        for part in range(4):
            step(net, optimizer, x[16 * part : 16 * part + 16], y[16 * part : 16 * part + 16])
        row = hook.end_epoch()
        if epoch == 1:
            assert row["sparsity"] == pytest.approx(0.5, abs=0.03)
    gone = {name: length == 0 for name, length in ssl.lengths(net, hook.groups).items()}
    assert sum(int(flags.sum()) for flags in gone.values()) == 7
    assert bool((net[1].weight[gone["0"]] == 0).all())
    assert bool((net[4].weight[gone["3"]] == 0).all())
