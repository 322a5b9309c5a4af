"""Fresh weights for a pruned architecture: by the rules it was made with, nothing of the old."""

import pytest
import torch
from torch import nn

import dafp
from dafp.models import build, reinitialise

OURS = ("vgg11", "preresnet20", "resnet20")


def trained(name: str, seed: int = 0) -> nn.Module:
    """As after training: every tensor away from where it began."""
    torch.manual_seed(seed)
    model = build(name, width=0.5)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            if tensor.is_floating_point():
                tensor.mul_(1.5).add_(torch.rand_like(tensor), alpha=0.1)
    return model


@pytest.mark.parametrize("name", OURS)
def test_an_unpruned_model_becomes_like_a_new_one(name):
    model, new = trained(name), build(name, width=0.5)
    reinitialise(model)
    assert len(model.state_dict()) == len(new.state_dict()) > 20
    for (key, found), fresh in zip(
        model.state_dict().items(), new.state_dict().values(), strict=True
    ):
        if not fresh.is_floating_point() or fresh.std(unbiased=False) == 0:
            assert torch.equal(found, fresh), key  # scales, shifts, statistics
            continue
        error = fresh.std() / fresh.numel() ** 0.5
        assert abs(found.mean() - fresh.mean()) < 8 * error, key
        assert float(found.std()) == pytest.approx(float(fresh.std()), rel=0.25), key


@pytest.mark.parametrize("name", OURS)
def test_a_pruned_model_keeps_its_architecture_and_forgets_the_rest(name):
    model, example = trained(name), torch.randn(2, 3, 32, 32)
    small = dafp.slim(model, example[:1], 0.5)
    shapes = {key: tensor.shape for key, tensor in small.state_dict().items()}
    plan = dafp.plan_of(small)
    old = {key: tensor.clone() for key, tensor in small.state_dict().items()}
    reinitialise(small)
    assert {key: tensor.shape for key, tensor in small.state_dict().items()} == shapes
    assert dafp.plan_of(small) == plan
    for key, module in small.named_modules():
        if isinstance(module, nn.BatchNorm2d):
            assert torch.equal(module.running_mean, torch.zeros_like(module.running_mean))
            assert torch.equal(module.running_var, torch.ones_like(module.running_var))
            assert module.weight.std(unbiased=False) == 0
            assert not module.bias.any()
            assert int(module.num_batches_tracked) == 0
        elif isinstance(module, nn.Conv2d):
            assert not (module.weight == old[f"{key}.weight"]).any()
    assert torch.isfinite(small(example)).all()


@pytest.mark.parametrize("name", ["vgg11", "preresnet20"])
def test_convolutions_get_the_deviation_of_their_new_width(name):
    # N(0, sqrt(2 / (k²·C_out)))
    small = dafp.slim(trained(name), torch.randn(1, 3, 32, 32), 0.5)
    reinitialise(small)
    for key, module in small.named_modules():
        if isinstance(module, nn.Conv2d) and module.weight.numel() > 500:
            expected = (2 / (module.kernel_size[0] ** 2 * module.out_channels)) ** 0.5
            assert float(module.weight.detach().std()) == pytest.approx(expected, rel=0.15), key


def test_the_same_seed_gives_the_same_weights():
    found = []
    for old in (0, 1):
        model = trained("vgg11", old)
        torch.manual_seed(7)
        reinitialise(model)
        found.append(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(*(s.values() for s in found), strict=True))


def test_a_network_of_the_users_is_reset_by_its_own_layers():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    before = net[0].weight.detach().clone()
    net(torch.randn(4, 3, 8, 8))
    nn.init.constant_(net[1].weight, 3.0)
    reinitialise(net)
    assert not torch.equal(net[0].weight, before)
    assert torch.equal(net[1].weight, torch.ones(8))
    assert torch.equal(net[1].running_mean, torch.zeros(8))
