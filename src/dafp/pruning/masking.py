"""The oracle: the same network, where nobody hears the channels that a plan removes.

Every weight slice that reads a removed channel is set to zero. This needs no assumption on
normalisation or activation, and it shares no code with `prune`, which it is compared with.
"""

from typing import Any

import torch
from torch import Tensor, nn

from ..graph.channel_graph import ChannelGraph, check_same_model
from ..graph.plan import PruningPlan
from ..network.model_copy import deep_copy, sharing_copy
from .mean_compensation import compensate_means


def mask(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool = False
) -> nn.Module:
    """A copy of full size that computes what the pruned model must compute."""
    check_same_model(model, graph)
    return zero_consumers(deep_copy(model), graph, graph.resolve(plan), compensate)


@torch.no_grad()
def zero_consumers(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool
) -> nn.Module:
    """Zero, in place, every weight slice that reads a channel the resolved plan removes."""
    if compensate:
        compensate_means(model, graph, plan)
    for name, slices in _removed_slices(graph, plan).items():
        _zero(_tensor(model, name), slices)
    return model


@torch.no_grad()
def masked_while_running(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool
) -> nn.Module:
    """What `mask` gives, without a second set of weights: only the layer that runs has masked ones.

    Weights that are read outside of their layer's forward are heard whole: whoever finds a
    difference has to ask `zero_consumers` too.
    """
    lent = _lent(model)
    masked = sharing_copy(model, lent)
    if compensate:
        compensate_means(masked, graph, plan)
    unheard = _removed_slices(graph, plan)
    for name in lent:  # the whole ones too: a forward may write into its weights
        owner, _, attribute = name.rpartition(".")
        _mask_while_running(masked.get_submodule(owner), attribute, unheard.pop(name, []))
    for name, slices in unheard.items():
        _zero(_tensor(masked, name), slices)
    return masked


Slices = list[tuple[int, Tensor]]  # axis, entries


def _removed_slices(graph: ChannelGraph, plan: PruningPlan) -> dict[str, Slices]:
    """Tensor -> the slices of it that read a channel the plan removes."""
    found: dict[str, Slices] = {}
    for group in graph.groups:
        gone = torch.ones(group.size, dtype=torch.bool)
        gone[list(plan.keep[group.name])] = False
        for slot in group.consumers:
            entries = torch.tensor(slot.index).view(group.size, -1)[gone].flatten()
            found.setdefault(slot.param, []).append((slot.dim, entries))
    return found


def _zero(weight: Tensor, slices: Slices) -> None:
    for dim, entries in slices:
        weight.index_fill_(dim, entries.to(weight.device), 0)


def _lent(model: nn.Module) -> set[str]:
    """Weights of two axes and more that belong to one layer only."""
    owners: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():
        for attribute, tensor in module._parameters.items():
            if type(tensor) is nn.Parameter and tensor.dim() > 1:
                simple = "" if module._modules else f"{prefix}.{attribute}" if prefix else attribute
                owners.setdefault(id(tensor), []).append(simple)
    return {names[0] for names in owners.values() if len(names) == 1 and names[0]}


def _mask_while_running(layer: nn.Module, attribute: str, slices: Slices) -> None:
    whole = layer._parameters[attribute]
    assert whole is not None

    def before(module: nn.Module, args: Any) -> None:
        weight = whole.detach().clone()
        _zero(weight, slices)
        module._parameters[attribute] = nn.Parameter(weight, requires_grad=False)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        module._parameters[attribute] = whole

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after, always_call=True)


def _tensor(model: nn.Module, name: str) -> Tensor:
    owner, _, attribute = name.rpartition(".")
    tensor = getattr(model.get_submodule(owner), attribute)
    assert isinstance(tensor, Tensor)
    return tensor
