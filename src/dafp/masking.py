"""The oracle: the same network, where nobody hears the channels that a plan removes.

Every weight slice that reads a removed channel is set to zero. This needs no assumption on
normalisation or activation, and it shares no code with the surgery that it judges.
"""

import copy

import torch
from torch import nn

from .compensation import give_back_means
from .graph import ChannelGraph
from .plan import PruningPlan


@torch.no_grad()
def mask(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool = False
) -> nn.Module:
    """A copy of full size that computes what the pruned model must compute."""
    plan = graph.resolve(plan)
    masked = copy.deepcopy(model)
    if compensate:
        give_back_means(masked, graph, plan)
    for group in graph.groups:
        kept = set(plan.keep[group.name])
        gone = [channel for channel in range(group.size) if channel not in kept]
        for slot in group.consumers:
            entries = torch.tensor(slot.index).view(group.size, -1)[gone].flatten()
            weight = _tensor(masked, slot.param)
            weight.index_fill_(slot.dim, entries.to(weight.device), 0)
    return masked


def _tensor(model: nn.Module, name: str) -> torch.Tensor:
    owner, _, attribute = name.rpartition(".")
    tensor = getattr(model.get_submodule(owner), attribute)
    assert isinstance(tensor, torch.Tensor)
    return tensor
