"""Entries that are written at positions: channels of other axes are followed."""

import pytest
import torch
from torch import Tensor, nn

import dafp


class Writes(nn.Module):
    """Writes the output of a convolution into rows of another output of it."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.in_place = in_place
        self.inner, self.outer = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 2, 3)

    def forward(self, x: Tensor) -> Tensor:
        found, rows = self.inner(x), (torch.tensor([0]),)
        other = self.inner(2 * x[:1])
        if self.in_place:
            found.index_put_(rows, other)
            return self.outer(found)
        return self.outer(found.index_put(rows, other))


@pytest.mark.parametrize("in_place", [True, False])
def test_channels_are_followed_through_writing_rows(in_place):
    model, x = Writes(in_place), torch.randn(2, 3, 8, 8)
    graph = dafp.trace(model, x)
    assert [(group.name, group.size) for group in graph.groups] == [("inner", 8)]
    plan = dafp.PruningPlan({"inner": (0, 3, 6)})
    small = dafp.prune(model, graph, plan)
    assert small.inner.out_channels == 3
    torch.testing.assert_close(small(x), dafp.mask(model, graph, plan)(x))
