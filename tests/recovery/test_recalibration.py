"""Recalibrated BN statistics: equal to those computed by hand, and nothing else changes."""

import re

import pytest
import torch
from torch import Tensor, nn

import dafp
from dafp.errors import PlanError
from support.training import tiny_net


class Net(nn.Module):
    """Two BNs in a row of convolutions, with dropout that would disturb the second."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.norm1 = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.3)
        self.drop = nn.Dropout(0.5)
        self.conv2, self.norm2 = nn.Conv2d(4, 5, 3), nn.BatchNorm2d(5)
        self.norm1.running_mean.normal_()
        self.norm2.running_var.uniform_(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(self.norm1(self.conv1(x)).relu())
        return self.norm2(self.conv2(x)).mean((2, 3))


def batches(count: int = 3) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, 8, 8, generator=generator) * (i + 1) for i in range(count)]


def by_hand(model: Net, data: list[Tensor]) -> dict[str, Tensor]:
    """The plain average over batches of each batch's mean and unbiased variance."""
    means1, vars1, means2, vars2 = [], [], [], []
    with torch.no_grad():
        for x in data:
            y = model.conv1(x)
            mean, var = y.mean((0, 2, 3)), y.var((0, 2, 3), unbiased=False)
            means1.append(mean)
            vars1.append(y.var((0, 2, 3), unbiased=True))
            y = (y - mean[:, None, None]) / (var[:, None, None] + model.norm1.eps).sqrt()
            y = y * model.norm1.weight[:, None, None] + model.norm1.bias[:, None, None]
            y = model.conv2(y.relu())
            means2.append(y.mean((0, 2, 3)))
            vars2.append(y.var((0, 2, 3), unbiased=True))
    names = ("norm1.running_mean", "norm1.running_var", "norm2.running_mean", "norm2.running_var")
    lists = (means1, vars1, means2, vars2)
    return {name: torch.stack(values).mean(0) for name, values in zip(names, lists, strict=True)}


def test_statistics_are_the_average_over_the_batches():
    model = Net()
    wanted = by_hand(model, batches())
    dafp.recalibrate(model, batches())
    for name, value in wanted.items():
        torch.testing.assert_close(model.state_dict()[name], value)


def test_the_old_statistics_have_no_part_in_it():
    first, second = Net(), Net()
    first.norm1.running_mean.fill_(100)
    for model in (first, second):
        dafp.recalibrate(model, batches())
    assert torch.equal(first.norm1.running_mean, second.norm1.running_mean)


@pytest.mark.parametrize("make", [lambda x: x, lambda x: (x,), lambda x: {"x": x},
                                  lambda x: (x, torch.zeros(4, dtype=torch.long)),
                                  lambda x: [x, torch.zeros(4, dtype=torch.long)]])  # fmt: skip
def test_a_batch_may_be_an_input_a_pair_with_targets_or_keywords(make):
    model = Net()
    wanted = by_hand(model, batches())
    dafp.recalibrate(model, [make(x) for x in batches()])
    torch.testing.assert_close(model.norm2.running_mean, wanted["norm2.running_mean"])


def test_a_generator_of_batches_will_do():
    model = Net()
    wanted = by_hand(model, batches())
    dafp.recalibrate(model, (x for x in batches()))
    torch.testing.assert_close(model.norm1.running_var, wanted["norm1.running_var"])


def test_dropout_stays_off():
    model = Net()
    model.train()
    seen: list[bool] = []
    model.drop.register_forward_pre_hook(lambda module, args: seen.append(module.training))
    dafp.recalibrate(model, batches())
    assert seen == [False] * 3


def test_modes_and_momentum_are_as_before():
    model = Net().train()
    model.norm1.eval()
    before = {name: module.training for name, module in model.named_modules()}
    dafp.recalibrate(model, batches())
    assert {name: module.training for name, module in model.named_modules()} == before
    assert (model.norm1.momentum, model.norm2.momentum) == (0.3, 0.1)


def test_weights_and_gradients_are_as_before():
    model = Net()
    before = {name: p.clone() for name, p in model.named_parameters()}
    dafp.recalibrate(model, batches())
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert all(p.grad is None for p in model.parameters())


def test_it_returns_the_model_itself():
    model = Net()
    assert dafp.recalibrate(model, batches()) is model


def test_a_batch_norm_without_statistics_is_left_alone():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False))
    dafp.recalibrate(model, batches())
    assert model[1].running_mean is None


def test_no_batches_are_refused_and_the_old_statistics_stay():
    model = Net()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(PlanError, match="no batches"):
        dafp.recalibrate(model, [])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("bad", [torch.randn(4, 2, 8, 8), "no tensor"], ids=["shape", "text"])
def test_a_failing_batch_brings_back_statistics_modes_and_momentum(bad):
    model = Net().train()
    model.norm2.eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    with pytest.raises(PlanError, match="does not run on batch 2"):
        dafp.recalibrate(model, [*batches(2), bad])
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert (model.norm1.momentum, model.norm2.momentum) == (0.3, 0.1)


def test_an_interruption_brings_back_the_old_statistics():
    model = Net()
    before = model.norm1.running_mean.clone()

    def interrupted():
        yield batches(1)[0]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dafp.recalibrate(model, interrupted())
    assert torch.equal(model.norm1.running_mean, before)


def test_a_pruned_model_can_be_recalibrated():
    x = torch.randn(2, 3, 8, 8)
    small = dafp.slim(Net().eval(), x, ratio=0.5)
    dafp.recalibrate(small, batches())
    assert small.norm1.running_mean.isfinite().all()
    assert small.norm1.num_batches_tracked == 3


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (torch.zeros(2, 3, 8, 8), "recalibrate takes batches, one after another, not a Tensor"),
        ({"x": 1}, "not a dict"),
        (None, "not a NoneType"),
        ([torch.zeros(2, 4, 8, 8)], "does not run on batch 0 (float32 [2, 4, 8, 8])"),
        (["image"], "does not run on batch 0 (str)"),
        ([torch.zeros(2, 3, 8, 8), torch.zeros(0, 3, 8, 8)], "batch 1 (float32 [0, 3, 8, 8]) has"),
        ([(torch.zeros(0, 3, 8, 8), torch.zeros(0))], "has no rows"),
        ([torch.full((2, 3, 8, 8), float("nan"))], "came out with infinite or undefined numbers"),
        ([torch.full((2, 3, 8, 8), 3e38)], "came out with infinite or undefined numbers"),
    ],
)
def test_batches_that_cannot_be_used_are_refused_and_the_statistics_stay(given, words):
    model = tiny_net()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with pytest.raises(PlanError, match=re.escape(words)):
        dafp.recalibrate(model, given)
    assert all(torch.equal(buffer, before[name]) for name, buffer in model.named_buffers())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, "taylor takes batches"),
        ([torch.zeros(2, 3, 8, 8)], "taylor takes (input, target) pairs; this batch is float32"),
        ([(torch.zeros(2, 3, 8, 8), torch.zeros(7).long())], "target int64 [7]"),
    ],
)
def test_batches_that_taylor_cannot_use_are_refused(given, words):
    model = tiny_net()
    graph = dafp.trace(model, torch.zeros(1, 3, 8, 8))
    with pytest.raises(PlanError, match=re.escape(words)):
        dafp.criteria.taylor(model, graph, given)
    with pytest.raises(PlanError, match="shift_aware takes batches"):
        dafp.criteria.shift_aware(model, graph, torch.zeros(2, 3, 8, 8))
