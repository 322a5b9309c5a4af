"""Channel pruning by LASSO: what it selects and rebuilds, layer by layer."""

import dataclasses

import pytest
import torch
from torch import nn

import dafp
from dafp.calibration.consumers import calibrated_consumers
from dafp.calibration.inputs import read_inputs
from dafp.methods import Task, lasso
from dafp.methods.reconstruct import PER_CLASS
from dafp.selection import removed_share
from dafp.training.config import Config
from support.training import graph_of, images, step, tiny_data, tiny_net


def trained_net(steps: int = 20):
    net = tiny_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for number in range(steps):
        step(net, optimizer, *images(number))
    return net.eval()


def task_of(net, **settings):
    config = Config(method="lasso", batch_size=16, **settings)
    return Task(net, graph_of(net), config, tiny_data())


def test_a_copy_of_a_channel_is_removed_and_the_other_takes_over():
    """Without its copy the network computes the same, so no accuracy is lost."""
    net = trained_net()
    with torch.no_grad():
        for name in ("weight", "bias", "running_mean", "running_var"):
            if name == "weight":
                net[0].weight[3] = net[0].weight[1]
            getattr(net[1], name)[3] = getattr(net[1], name)[1]
    task = task_of(net, target=0.15)  # one channel of six, one of eight
    plan = task.graph.resolve(lasso.plan(task))
    assert len(plan.keep["0"]) == 5
    assert len({1, 3} & set(plan.keep["0"])) == 1
    first = dafp.PruningPlan({"0": plan.keep["0"]})
    rebuilt = lasso.METHOD.rebuild(task, task.graph.resolve(first))
    x, _ = images(7)
    with torch.no_grad():
        error = float((rebuilt(x) - net(x)).norm() / net(x).norm())
        lost = float((dafp.mask(net, task.graph, first)(x) - net(x)).norm() / net(x).norm())
    assert lost > 0.02
    assert error < 0.1 * lost


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
def test_the_share_of_the_unit_is_removed(unit):
    net = tiny_net(widths=(16, 24))
    task = task_of(net, target=0.5, unit=unit)
    plan = task.graph.resolve(lasso.plan(task))
    assert removed_share(task.graph, plan, unit) == pytest.approx(0.5, abs=0.05)
    assert 0 < len(plan.keep["0"]) < 16


def test_the_least_squares_fit_of_a_layer_is_the_best_one():
    """Between two selections: weights and mean of the rest minimise the error on the sample."""
    net = trained_net()
    task = task_of(net)
    whole, work = net, dafp.network.model_copy.deep_copy(net)
    consumers = [c for c in calibrated_consumers(net, task.graph)[0] if c.weight == "3.weight"]
    inputs = read_inputs(net, [x for x, _ in task.calibration_data(PER_CLASS)], "test")
    sums = lasso._products(task, whole, work, consumers, inputs)
    keep = dafp.PruningPlan({"0": (0, 2, 4, 5)})
    alive = task.graph.label_index.kept(task.graph.flags(task.graph.resolve(keep)))
    lasso._refit(whole, work, consumers[0], alive, sums["3.weight"])
    one = sums["3.weight"][0]
    columns = torch.tensor([c not in (1, 3) for c in range(6)]).repeat_interleave(9)
    zz, zt = one.about(centred=True)
    free = torch.linalg.solve(zz[columns][:, columns], zt[columns]).T
    new = work[3].weight.detach().double().flatten(1)
    assert bool((new[:, ~columns] == 0).all())

    def error(weights):
        part = zz[columns][:, columns]
        return float(((weights @ part) * weights).sum() - 2 * (weights * zt[columns].T).sum())

    # the mean of the outputs is that of the original: the BN behind takes the difference
    shift = (net[4].running_mean - work[4].running_mean).double()
    torch.testing.assert_close(
        new @ one.z / one.count + shift, one.t / one.count, rtol=0, atol=1e-5
    )
    assert float(shift.abs().max()) > 1e-3
    old = net[3].weight.detach().double().flatten(1)
    assert error(free) <= error(new[:, columns]) < error(old[:, columns])
    assert error(new[:, columns]) - error(free) < 0.1 * (error(old[:, columns]) - error(free))


class Grouped(nn.Module):
    """A grouped consumer, one that is used twice, and a linear layer after a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.twice = nn.Conv2d(8, 8, 3, padding=1)
        self.out = nn.Linear(8 * 16, 4)

    def forward(self, x):
        x = self.b(self.a(x).relu()).relu()
        x = self.twice(self.twice(x).relu()).relu()
        return self.out(nn.functional.max_pool2d(x, 2).flatten(1))


def test_grouped_and_repeated_consumers_are_pruned_too():
    torch.manual_seed(0)
    task = task_of(Grouped().eval(), target=0.5)
    plan = task.graph.resolve(lasso.plan(task))
    assert removed_share(task.graph, plan, "filters") == pytest.approx(0.5, abs=0.05)
    small = dafp.prune(lasso.METHOD.rebuild(task, plan), task.graph, plan)
    assert small.a.out_channels == 4


def test_equal_seeds_give_equal_plans_and_a_channel_without_consumers_goes_first():
    net = trained_net()
    with torch.no_grad():
        net[3].weight[:, 2] = 0
        net[0].weight[2] *= 10  # the filter itself is large
        net[1].running_var[2] *= 100
    task = task_of(net, target=0.3)
    plan = lasso.plan(task)
    assert 2 not in plan.keep["0"]
    again = lasso.plan(dataclasses.replace(task))
    assert plan.keep == again.keep
