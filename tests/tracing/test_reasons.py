"""Why channels are kept: the reason says what uses them, in words of the network's author."""

import torch
from torch import Tensor, nn

import dafp
from dafp.criteria import l2_norm
from dafp.selection import uniform

IMAGE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Conditional(nn.Module):
    """Four experts in one matrix, mixed for every image: outputs, inputs and kernel on one axis."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.plain = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 1)
        self.routing = nn.Linear(4, 4)
        self.experts = nn.Parameter(torch.randn(4, 6 * 4 * 9))
        self.head = nn.Linear(6, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.plain(self.stem(x).relu())
        mixed = torch.matmul(self.routing(x.mean((2, 3))).sigmoid(), self.experts)
        rows = x.shape[0]
        x = x.reshape(1, rows * 4, *x.shape[2:])
        x = nn.functional.conv2d(x, mixed.view(rows * 6, 4, 3, 3), groups=rows)
        return self.head(x.view(rows, 6, *x.shape[2:]).mean((2, 3)))


class Blurred(nn.Module):
    """The kernel of the second convolution is not a tensor of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.conv2d(self.stem(x), torch.arange(40.0).view(5, 8, 1, 1))


def test_weights_that_the_forward_computes_keep_what_they_use_and_say_so():
    model = Conditional().eval()
    graph = dafp.trace(model, IMAGE)
    reasons = {kept.name: kept.reason for kept in graph.kept}
    assert reasons["experts"] == "the forward uses its outputs as weights"
    assert reasons["plain"] == "consumed by weights that the forward computes"
    plan = graph.resolve(uniform(l2_norm(model, graph), 0.5))
    small = dafp.prune(model, graph, plan)
    assert small.stem.weight.shape[0] == 4
    torch.testing.assert_close(small(IMAGE), dafp.mask(model, graph, plan)(IMAGE))


def test_weights_from_outside_the_model_keep_what_they_use_and_say_so():
    graph = dafp.trace(Blurred(), IMAGE)
    assert [(kept.name, kept.reason) for kept in graph.kept] == [
        ("stem", "consumed by weights from outside the model")
    ]
