"""Mean and variance of activation norms, computed by hand and on networks of several kinds."""

import pytest
import torch
from torch import nn

import dafp
from dafp.errors import PlanError
from support.training import graph_of, images, tiny_net


def hand_made():
    """Three channels of ±x; the images have norms 5 and 1."""
    net = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), nn.ReLU(), nn.Conv2d(3, 2, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([1.0, 2.0, -1.0]).view(3, 1, 1, 1))
    x = torch.tensor([[[[3.0, 4.0]]], [[[0.0, 1.0]]]])
    return net, dafp.trace(net, x), x


def test_the_mean_of_the_norms_is_over_images_not_over_batches():
    net, graph, x = hand_made()
    together = dafp.criteria.activation_norm(net, graph, [x])["0"]
    apart = dafp.criteria.activation_norm(net, graph, [x[:1], x[1:], x[1:]])["0"]
    assert together.tolist() == [3.0, 6.0, 0.0]
    torch.testing.assert_close(apart, torch.tensor([7 / 3, 14 / 3, 0.0]))


def test_the_variance_of_the_norms_is_zero_for_a_channel_that_never_changes():
    net, graph, x = hand_made()
    scores = dafp.criteria.activation_norm(net, graph, [x], statistic="variance")["0"]
    assert scores.tolist() == [4.0, 16.0, 0.0]  # of 5 and 1; of 10 and 2
    mirrored = torch.cat([x[:1], x[:1].flip(3)])  # another image of the same norm
    equal = dafp.criteria.activation_norm(net, graph, [mirrored], statistic="variance")["0"]
    assert equal.tolist() == [0.0, 0.0, 0.0]


def test_scores_are_norms_of_what_the_consumers_receive_also_after_a_flatten():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(4 * 9, 2)
    ).eval()
    x = torch.randn(6, 3, 8, 8)
    graph = dafp.trace(net, x)
    received = net[2](net[1](net[0](x)))
    expected = received.flatten(2).norm(dim=2).mean(0)
    scores = dafp.criteria.activation_norm(net, graph, [x])["0"]
    torch.testing.assert_close(scores, expected.detach())
    assert scores.unique().numel() == 4


class TwoConsumers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.make = nn.Conv2d(3, 4, 3, padding=1)
        self.left, self.right = nn.Conv2d(4, 2, 1), nn.Conv2d(4, 3, 1)

    def forward(self, x):
        x = self.make(x).relu()
        return self.left(x).mean((2, 3)), self.right(-2 * x).mean((2, 3))


def test_with_two_consumers_the_squares_are_added():
    net = TwoConsumers().eval()
    x = torch.randn(5, 3, 6, 6)
    graph = dafp.trace(net, x)
    expected = net.make(x).relu().flatten(2).norm(dim=2).mean(0) * 5**0.5
    scores = dafp.criteria.activation_norm(net, graph, [x])["make"]
    torch.testing.assert_close(scores, expected.detach())


def test_the_network_does_not_change_and_no_hook_stays():
    net = tiny_net()
    graph, (x, _) = graph_of(net), images()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    net.train()
    dafp.criteria.activation_norm(net, graph, [x])
    assert net.training
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in net.modules())
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_wrong_statistics_and_missing_data_are_refused():
    net = tiny_net()
    graph, (x, _) = graph_of(net), images()
    with pytest.raises(PlanError, match="statistic='median' is not known; choose 'mean' or"):
        dafp.criteria.activation_norm(net, graph, [x], statistic="median")
    with pytest.raises(PlanError, match="activation_norm got no batches"):
        dafp.criteria.activation_norm(net, graph, [])
    with pytest.raises(PlanError, match="'activation_norm' needs data: give calibration images"):
        dafp.slim(net, x[:1], criterion="activation_norm")
