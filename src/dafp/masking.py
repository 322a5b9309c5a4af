"""The oracle: the same network, where nobody hears the channels that a plan removes.

Every weight slice that reads a removed channel is set to zero. This needs no assumption on
normalisation or activation, and it shares no code with the surgery that it judges.
"""

import torch
from torch import nn

from .compensation import give_back_means
from .fingerprint import check_same_model
from .graph import ChannelGraph
from .plan import PruningPlan
from .running import deep_copy


def mask(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool = False
) -> nn.Module:
    """A copy of full size that computes what the pruned model must compute."""
    check_same_model(model, graph)
    return cut_listeners(deep_copy(model), graph, graph.resolve(plan), compensate)


@torch.no_grad()
def cut_listeners(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool
) -> nn.Module:
    """Zero, in place, every weight slice that reads a channel the resolved plan removes."""
    if compensate:
        give_back_means(model, graph, plan)
    for group in graph.groups:
        gone = torch.ones(group.size, dtype=torch.bool)
        gone[list(plan.keep[group.name])] = False
        for slot in group.consumers:
            entries = torch.tensor(slot.index).view(group.size, -1)[gone].flatten()
            weight = _tensor(model, slot.param)
            weight.index_fill_(slot.dim, entries.to(weight.device), 0)
    return model


def _tensor(model: nn.Module, name: str) -> torch.Tensor:
    owner, _, attribute = name.rpartition(".")
    tensor = getattr(model.get_submodule(owner), attribute)
    assert isinstance(tensor, torch.Tensor)
    return tensor
