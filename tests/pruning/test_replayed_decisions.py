"""Networks that decide by their numbers: other inputs take the decisions of the example."""

import pickle

import pytest
import torch
from torch import Tensor, nn

import dafp


class LogOfPositive(nn.Module):
    """The mean logarithm of the outputs above zero: a replayed decision takes negative ones too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 2, 3))

    def forward(self, x: Tensor) -> Tensor:
        found = self.body(x)
        return found[found > 0].log().mean()


@pytest.fixture(scope="module")
def small() -> nn.Module:
    model, x = LogOfPositive(), torch.randn(2, 3, 12, 12, generator=torch.manual_seed(0))
    graph = dafp.trace(model, x)
    assert [(group.name, group.size) for group in graph.groups] == [("body.0", 8)]
    return dafp.prune(model, graph, dafp.PruningPlan({"body.0": (0, 2, 3, 5)}))


def test_a_network_that_is_not_finite_on_replayed_decisions_is_pruned(small):
    assert small.body[0].out_channels == 4


def test_a_pruned_network_that_decides_can_be_pickled(small):
    again = pickle.loads(pickle.dumps(small))
    assert dafp.plan_of(again) == dafp.plan_of(small)
    assert dafp.cost(again, torch.randn(1, 3, 12, 12)).params == 4 * 27 + 4 + 2 * 36 + 2
