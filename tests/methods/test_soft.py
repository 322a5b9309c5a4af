"""SFP, ASFP and FPGM by hand: which filters become zero, when, and how long they stay so."""

import dataclasses

import pytest
import torch
from torch import nn
from torch.optim import SGD

import dafp
from dafp.methods import Task, soft
from dafp.methods.zeroing import settle_norms, zeroed
from dafp.training.config import Config, Schedule
from support.training import graph_of, images, step, tiny_data, tiny_net

CONFIG = Config(sparse=Schedule(4, 0.05, ()), batch_size=16)


def task_of(**settings):
    net = tiny_net()
    return Task(net, graph_of(net), dataclasses.replace(CONFIG, **settings), tiny_data())


def zeros(task) -> dict[str, list[int]]:
    found = zeroed(task.model, task.graph)
    return {name: flags.nonzero().flatten().tolist() for name, flags in found.items()}


def fill(conv, values) -> None:
    """Every weight of filter i has this value."""
    with torch.no_grad():
        conv.weight.copy_(torch.tensor(values).view(-1, 1, 1, 1).expand_as(conv.weight))


def test_before_the_first_epoch_sfp_zeroes_the_shortest_half_of_each_layer():
    task = task_of()
    fill(task.model[0], [0.3, -0.1, 0.5, 0.2, -0.6, 0.4])
    fill(task.model[3], [-0.8, 0.1, 0.7, 0.2, 0.6, -0.3, 0.5, 0.4])
    soft.SFP.prepare(task)
    assert zeros(task) == {"0": [0, 1, 3], "3": [1, 3, 5, 7]}
    assert soft.SFP.plan(task).keep == {"0": (2, 4, 5), "3": (0, 2, 4, 6)}


FILTERS = torch.tensor(
    [
        [3.0, 0, 0, 0],  # L1 3, L2 3
        [1, -1, 1, -1],  # L1 4, L2 2
        [5, 0, 0, 0],  # L1 5, L2 5
        [1.4, 1.4, -1.4, 1.4],  # L1 5.6, L2 2.8
    ]
)


def uneven_task():
    """One epoch, and filters that the sum of absolute weights would rank otherwise."""
    net = tiny_net(widths=(4, 4))
    with torch.no_grad():
        net[0].weight.zero_().view(4, -1)[:, :4] = FILTERS
        net[3].weight.zero_().view(4, -1)[:, :4] = FILTERS[[3, 2, 0, 1]]
    config = dataclasses.replace(CONFIG, sparse=Schedule(1, 0.05, ()))
    return Task(net, graph_of(net), config, tiny_data())


def test_sfp_zeroes_the_shortest_by_euclidean_norm_before_the_first_epoch():
    task = uneven_task()
    soft.SFP.prepare(task)
    assert zeros(task) == {"0": [1, 3], "3": [0, 3]}


@pytest.mark.parametrize("method", [soft.SFP, soft.ASFP], ids=lambda m: m.name)
def test_sfp_and_asfp_zero_the_shortest_by_euclidean_norm_after_an_epoch(method):
    task = uneven_task()
    hook = method.train(task, SGD(task.model.parameters(), 0.1))
    assert zeros(task) == {"0": [], "3": []}
    hook.end_epoch()
    assert zeros(task) == {"0": [1, 3], "3": [0, 3]}


@pytest.mark.parametrize("method", [soft.SFP, soft.ASFP], ids=lambda m: m.name)
def test_the_plan_of_sfp_and_asfp_goes_by_euclidean_norm(method):
    assert method.plan(uneven_task()).keep == {"0": (0, 2), "3": (1, 2)}


def test_sfp_lets_zeroed_filters_train_on_and_chooses_again():
    task = task_of()
    optimizer = SGD(task.model.parameters(), 0.1)
    soft.SFP.prepare(task)
    assert {name: len(gone) for name, gone in zeros(task).items()} == {"0": 3, "3": 4}
    with torch.no_grad():
        for norm in (task.model[1], task.model[4]):
            norm.bias.fill_(0.2)  # behind a negative shift ReLU lets no gradient pass
    hook = soft.SFP.train(task, optimizer)
    step(task.model, optimizer, *images())
    assert zeros(task) == {"0": [], "3": []}
    fill(task.model[0], [0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    record = hook.end_epoch()
    assert zeros(task)["0"] == [3, 4, 5]
    assert record["sparsity"] == 0.5


@pytest.mark.parametrize(("epoch", "ratio"), [(0, 0.0), (20, 0.45), (160, 0.6)])
def test_the_asymptotic_course_goes_through_its_three_points(epoch, ratio):
    assert soft.asymptotic(0.6, epoch, 160) == pytest.approx(ratio, abs=1e-12)


def test_between_its_points_the_asymptotic_course_is_nearly_one_minus_a_quarter_to_the_eighths():
    for epoch in range(0, 161, 8):
        about = 0.6 * (1 - 4 ** (-8 * epoch / 160))
        assert soft.asymptotic(0.6, epoch, 160) == pytest.approx(about, abs=1e-4)


def test_asfp_begins_with_all_filters_and_zeroes_more_after_every_epoch():
    task = task_of(sparse=Schedule(8, 0.05, ()))
    optimizer = SGD(task.model.parameters(), 0.01)
    soft.ASFP.prepare(task)
    assert zeros(task) == {"0": [], "3": []}
    hook = soft.ASFP.train(task, optimizer)
    counts = []
    for _ in range(8):
        step(task.model, optimizer, *images())
        hook.end_epoch()
        counts.append(sum(map(len, zeros(task).values())))
    # 14 filters, r = 0.5: 7·(1 − 4^−t) = 5.25, 6.56, 6.89, …
    assert counts == [5, 7, 7, 7, 7, 7, 7, 7]


def test_fpgm_zeroes_the_filter_in_the_middle_where_sfp_takes_the_shortest():
    corners = torch.tensor([[6.0, 5], [4, 5], [5, 5], [5, 6], [5, 4], [0.1, 0.1]])
    for method, first in ((soft.FPGM, [2]), (soft.SFP, [5])):
        task = task_of(target=2 / 14)
        with torch.no_grad():
            task.model[0].weight.zero_()[:, 0, 0, :2] = corners
        method.prepare(task)
        assert zeros(task)["0"] == first


def test_fpgm_holds_its_zeros_until_the_next_choice_whatever_momentum_says():
    task = task_of()
    optimizer = SGD(task.model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    for _ in range(3):
        step(task.model, optimizer, *images())  # momentum for all filters
    soft.FPGM.prepare(task)
    before = zeros(task)
    assert {name: len(gone) for name, gone in before.items()} == {"0": 3, "3": 4}
    hook = soft.FPGM.train(task, optimizer)
    for _ in range(3):
        step(task.model, optimizer, *images())
        assert zeros(task) == before
        grad = task.model[0].weight.grad
        assert bool((grad[before["0"]] == 0).all())
        assert not bool((grad == 0).all())
    hook.end_epoch()
    assert sum(map(len, zeros(task).values())) >= 7


def test_a_norm_behind_zero_filters_is_settled_to_its_constant_and_computes_the_same():
    task = task_of()
    net, (x, _) = task.model, images()
    for _ in range(3):
        net(x)
    soft.SFP.prepare(task)
    net.eval()
    out = net(x)
    settle_norms(net, task.graph, zeroed(net, task.graph))
    assert [int((net[i].weight == 0).sum()) for i in (1, 4)] == [3, 4]
    torch.testing.assert_close(net(x), out)


@pytest.mark.parametrize("method", [soft.FPGM, soft.SFP, soft.ASFP], ids=lambda m: m.name)
def test_the_constants_of_zeroed_filters_survive_their_removal(method):
    """Only the last layer: there is no padding between it and its consumer, so it is exact."""
    task = task_of()
    net, (x, _) = task.model, images()
    net.train()
    optimizer = SGD(net.parameters(), 0.05, momentum=0.9)
    method.prepare(task)
    hook = method.train(task, optimizer)
    for _ in range(4):
        for _ in range(20):
            step(net, optimizer, *images())
        hook.end_epoch()
    net.eval()
    keep = {"3": method.plan(task).keep["3"]}
    plan = dafp.PruningPlan(keep, {"3": 8})
    assert len(keep["3"]) == 4
    small = dafp.prune(net, task.graph, plan, compensate=True)
    with torch.no_grad():
        gap = float((small(x) - net(x)).abs().max() / net(x).abs().max())
        lost = float((dafp.prune(net, task.graph, plan)(x) - net(x)).abs().max())
    assert lost > (0.01 if method is soft.ASFP else 0.05)  # there was something to give back
    assert gap < 1e-5


def test_a_soft_method_goes_on_after_a_restart_as_if_nothing_had_happened():
    def epochs(task, count, state=None):
        optimizer = SGD(task.model.parameters(), 0.05, momentum=0.9)
        if state is None:
            soft.FPGM.prepare(task)
        else:
            task.model.load_state_dict(state["model"])
        hook = soft.FPGM.train(task, optimizer)
        if state is not None:
            optimizer.load_state_dict(state["optimizer"])
            hook.load_state_dict(state["addition"])
        for _ in range(count):
            step(task.model, optimizer, *images())
            hook.end_epoch()
        return {
            "model": task.model.state_dict(), "optimizer": optimizer.state_dict(),
            "addition": hook.state_dict(),
        }  # fmt: skip

    whole = epochs(task_of(), 4)
    parts = epochs(task_of(), 2, epochs(task_of(), 2))
    for name, value in whole["model"].items():
        torch.testing.assert_close(parts["model"][name], value, rtol=0, atol=0)


def test_the_momentum_of_a_zeroed_filter_is_forgotten_and_that_of_others_is_kept():
    task = task_of()
    optimizer = SGD(task.model.parameters(), 0.01, momentum=0.9)
    hook = soft.ASFP.train(task, optimizer)
    step(task.model, optimizer, *images())
    hook.end_epoch()
    gone = zeros(task)["0"]
    assert gone
    momentum = optimizer.state[task.model[0].weight]["momentum_buffer"]
    moving = momentum.abs().amax((1, 2, 3)).nonzero().flatten().tolist()
    assert moving == [channel for channel in range(6) if channel not in gone]


class Block(nn.Module):
    """Two convolutions with BN, and a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(8)

    def forward(self, x):
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


def test_asfp_learns_on_a_network_with_shortcuts():
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(), Block(), Block(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 4),
    )  # fmt: skip
    config = dataclasses.replace(CONFIG, sparse=Schedule(12, 0.1, ()))
    task = Task(net, graph_of(net), config, tiny_data())
    optimizer = SGD(net.parameters(), 0.1, momentum=0.9, weight_decay=5e-4)
    hook = soft.ASFP.train(task, optimizer)
    for _ in range(12):
        for _ in range(20):
            step(net, optimizer, *images())
        hook.end_epoch()
    assert [len(gone) for gone in zeros(task).values()] == [4, 4]
    x, y = images()
    small = dafp.prune(net.eval(), task.graph, soft.ASFP.plan(task), compensate=True)
    assert float((small(x).argmax(1) == y).float().mean()) > 0.9
