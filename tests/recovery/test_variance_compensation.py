"""Variance compensation: the shares that are left, by hand, and where nothing is changed."""

import pytest
import torch
from torch import nn

import dafp


def network(consumer, *, norm=True):
    """Two normalised channels, independent of each other, and a consumer of them."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 1), nn.BatchNorm2d(4), consumer,
        nn.BatchNorm2d(4) if norm else nn.Identity(), nn.ReLU(), nn.Conv2d(4, 3, 1),
    ).eval()  # fmt: skip


def changed(model, keep):
    graph = dafp.trace(model, torch.zeros(2, 2, 6, 6))
    plan = dafp.PruningPlan({"0": keep})
    return dafp.recovery.compensate_variances(model, graph, plan), graph, plan


def test_the_variance_falls_by_the_share_of_the_removed_channels():
    model = network(nn.Conv2d(4, 4, 1, bias=False))
    model[1].weight.data = torch.tensor([1.0, 2.0, 0.0, 1.0])
    model[2].weight.data = torch.ones(4, 4, 1, 1)
    model[3].running_var.fill_(2.0)
    new, graph, plan = changed(model, (1, 2))
    # 0² + 2² of 1² + 2² + 0² + 1²
    assert new[3].running_var.tolist() == pytest.approx([2 * 4 / 6] * 4)
    assert model[3].running_var.tolist() == [2.0] * 4
    small = dafp.prune(new, graph, plan, compensate=True)
    assert small[2].in_channels == 2


def test_each_group_of_a_grouped_consumer_has_its_own_share():
    model = network(nn.Conv2d(4, 4, 1, groups=2, bias=False))
    model[1].weight.data = torch.tensor([1.0, 3.0, 1.0, 1.0])
    model[2].weight.data = torch.ones(4, 2, 1, 1)
    new, _, _ = changed(model, (0,))  # channels 0 and 2: the same place in each group
    assert new[3].running_var.tolist() == pytest.approx([0.1, 0.1, 0.5, 0.5])


@pytest.mark.parametrize(
    "model",
    [
        network(nn.Conv2d(4, 4, 1), norm=False),
        network(nn.ConvTranspose2d(4, 4, 2, bias=False)),
    ],
    ids=["no BN after it", "transposed"],
)
def test_other_consumers_are_left_as_they_are(model):
    new, _, _ = changed(model, (0, 3))
    for name, tensor in model.state_dict().items():
        assert torch.equal(new.state_dict()[name], tensor), name


def test_outputs_keep_their_size_when_independent_channels_go():
    torch.manual_seed(0)
    model = network(nn.Conv2d(4, 4, 1, bias=False))
    x = torch.randn(64, 2, 6, 6)
    model[0].weight.data = torch.randn(4, 2, 1, 1)
    dafp.recalibrate(model, [x])
    new, graph, plan = changed(model, (0, 1))
    whole, plain, better = (
        net[:4](x).var((0, 2, 3)) for net in (model, dafp.mask(model, graph, plan),
                                              dafp.mask(new, graph, plan))
    )  # fmt: skip
    assert (better.log() - whole.log()).abs().mean() < 0.8 * (
        plain.log() - whole.log()
    ).abs().mean()
