"""Corners that a reading of the code found, each with a network that shows it."""

import torch
from torch import Tensor, nn

import dafp
from dafp.models import PreResNet

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
LARGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))


class Twice(nn.Module):
    """One convolution reads two scales: one bias cannot give back two means."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.reader = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 5, 1)
        self.one, self.two = nn.BatchNorm2d(4), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.reader(self.one(x).relu()) + self.reader(self.two(x).relu())


def drop_one(model: nn.Module, example: Tensor) -> nn.Module:
    graph = dafp.trace(model, example)
    name = graph.groups[0].name
    plan = dafp.PruningPlan({name: tuple(range(1, graph.groups[0].size))})
    return dafp.mask(model, graph, plan, compensate=True)


def test_a_reader_that_is_used_twice_gets_no_mean_back():
    torch.manual_seed(0)
    model = Twice().eval()
    assert torch.equal(drop_one(model, IMAGE).reader.bias, model.reader.bias)


def test_a_mean_is_not_carried_through_a_maximum():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(4), nn.Conv2d(4, 5, 1)]
    model = nn.Sequential(*layers).eval()
    assert torch.equal(drop_one(model, IMAGE)[4].bias, model[4].bias)
    del layers[3]
    plain = nn.Sequential(*layers).eval()
    assert not torch.equal(drop_one(plain, IMAGE)[3].bias, plain[3].bias)


def test_keep_holds_for_selections_too():
    model = PreResNet(20, width=0.25).eval()
    names = {group.name for group in dafp.trace(model, LARGE).groups}
    kept = {group.name for group in dafp.trace(model, LARGE, keep=["stages.0.1.bn1"]).groups}
    assert names - kept == {"stages.0.1.bn1"}


def test_an_empty_selection_can_be_masked():
    model = PreResNet(20, width=0.25).eval()
    graph = dafp.trace(model, LARGE)
    masked = dafp.mask(model, graph, dafp.PruningPlan({"stages.0.1.bn1": ()}))
    assert not masked.stages[0][1].conv1.weight.any()


def test_what_is_pruned_in_inference_mode_can_be_trained():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
    with torch.inference_mode():
        small = dafp.slim(model, IMAGE)
    small(IMAGE).sum().backward()
    assert small[0].weight.grad.shape == (4, 3, 3, 3)


class UpTo(nn.Module):
    """Takes as many channels as there are, by a number that is written down."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.reader = nn.Conv2d(3, 6, 1), nn.Conv2d(6, 5, 1)
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(self.stem(x)[:, : self.width])


def test_a_slice_up_to_the_whole_width_holds_no_channel():
    for width in (6, 7):
        small = dafp.slim(UpTo(width), IMAGE)
        assert small.stem.weight.shape == (3, 3, 1, 1)
