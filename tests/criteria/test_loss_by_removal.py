"""The loss without each channel: equal to that of the masked network, channel by channel."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, cross_entropy

import dafp
from dafp.errors import PlanError
from support.training import graph_of, images, tiny_net, with_random_bn


class Residual(nn.Module):
    """A block with a skip connection, a grouped convolution, and a linear layer after a flatten."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.a, self.norm = nn.Conv2d(4, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.b = nn.Conv2d(6, 4, 3, padding=1, groups=2)
        self.c = nn.Conv2d(4, 5, 3, stride=2, padding=1)
        self.out = nn.Linear(5 * 16, 4)

    def forward(self, x):
        x = self.stem(x).relu()
        x = x + self.b(self.norm(self.a(x)).relu())
        return self.out(self.c(x).relu().flatten(1))


class Functional(nn.Module):
    """The consumer is a function call: it cannot be tried by a hook on a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Conv2d(3, 4, 3)
        self.use = nn.Conv2d(4, 4, 3)

    def forward(self, x):
        return conv2d(self.make(x).relu(), self.use.weight, self.use.bias).mean((2, 3))


def by_masks(net, graph, batches):
    """The loss of the masked network, for every single channel."""
    found = {}
    for group in graph.groups:
        values = []
        for channel in range(group.size):
            keep = tuple(c for c in range(group.size) if c != channel)
            masked = dafp.mask(net, graph, dafp.PruningPlan({group.name: keep})).eval()
            total = sum(cross_entropy(masked(x), y, reduction="sum") for x, y in batches)
            values.append(total / sum(len(y) for _, y in batches))
        found[group.name] = torch.stack(values).detach()
    return found


@pytest.mark.parametrize("residual", ["keep", "couple"])
@pytest.mark.parametrize("build", [tiny_net, Residual, Functional])
def test_scores_are_the_losses_of_the_network_masked_channel_by_channel(build, residual):
    torch.manual_seed(0)
    net = with_random_bn(build()).eval()
    graph = graph_of(net, residual=residual)
    x, y = images()
    batches = [(x[:24], y[:24]), (x[24:40], y[24:40])]
    expected = by_masks(net, graph, batches)
    assert sum(len(values.unique()) for values in expected.values()) >= 4
    for rows in (1, 72, 2048):  # one channel in a pass, three, or all
        scores = dafp.criteria.loss_by_removal(net, graph, batches, rows=rows)
        for name, values in expected.items():
            torch.testing.assert_close(scores[name], values, rtol=1e-4, atol=1e-6)
            assert torch.equal(scores[name].argsort(), values.argsort())


def test_all_channels_of_a_layer_take_few_passes():
    net = tiny_net(widths=(6, 8))
    graph, (x, y) = graph_of(net), images(count=16)
    passes = []
    net.register_forward_hook(lambda *args: passes.append(len(args[2])))
    dafp.criteria.loss_by_removal(net, graph, [(x, y)], rows=64)
    assert passes == [16, 64, 32, 64, 64]  # the check; 4 + 2 of 6 channels, 4 + 4 of 8


def test_a_loss_of_ones_own_decides_what_counts():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(2))
        net[1].weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    x = torch.ones(4, 2)
    graph = dafp.trace(net, x)
    scores = dafp.criteria.loss_by_removal(
        net, graph, [(x, net(x).detach())], loss=nn.functional.mse_loss
    )
    assert scores["0"].tolist() == [0.5, 2.0]  # (1² + 0²)/2 and (0² + 2²)/2


def test_unlabelled_data_and_losses_that_are_not_one_number_are_refused():
    net = tiny_net()
    graph, (x, y) = graph_of(net), images()
    with pytest.raises(PlanError, match=r"takes \(input, target\) pairs; batch 1 is float32"):
        dafp.criteria.loss_by_removal(net, graph, [(x, y), x])
    with pytest.raises(PlanError, match="it must be one number, the mean over images"):
        dafp.criteria.loss_by_removal(
            net, graph, [(x, y)], loss=lambda out, y: cross_entropy(out, y, reduction="none")
        )
    with pytest.raises(PlanError, match="got no batches"):
        dafp.criteria.loss_by_removal(net, graph, [])
    with pytest.raises(PlanError, match="'loss_by_removal' needs data: give labelled"):
        dafp.slim(net, x[:1], criterion="loss_by_removal")


def test_the_network_does_not_change_and_no_hook_stays():
    net = Functional()
    graph, (x, y) = graph_of(net), images()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    dafp.criteria.loss_by_removal(net.train(), graph, [(x, y)])
    assert net.training
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
