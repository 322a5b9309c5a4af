"""The oracle: the network at full size, in which no consumer uses the channels a plan removes.

Every weight slice that multiplies a removed channel is set to zero. This needs no assumption about
normalisation or activation. It shares no code with the slicing that is verified against it, except
`compensate_means`, which both call if compensate=True.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..graph.channel_graph import ChannelGraph, Slot, check_same_model
from ..graph.plan import PruningPlan
from ..network.model_copy import deep_copy, sharing_copy
from ..network.named_tensors import modules_of
from .masked_norms import mask_norms
from .mean_compensation import compensate_means


def mask(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool = False
) -> nn.Module:
    """A copy of the model at full size that computes what the pruned model must compute.

    The weights of every consumer that multiply a removed channel are zero. `prune` verifies its
    result against this model.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`
        plan: which channels to keep
        compensate: add the mean of the removed channels, computed from γ and β, to the bias of
            their consumers (or to the running mean of the BN after them)

    Returns:
        A new model; the original does not change.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)
        ... )
        >>> x = torch.randn(2, 1, 8, 8)
        >>> graph = dafp.trace(model.eval(), x)
        >>> plan = dafp.PruningPlan({"0": (0, 2)})
        >>> masked = dafp.mask(model, graph, plan)
        >>> masked[3].weight.abs().sum(dim=(0, 2, 3)) > 0
        tensor([ True, False,  True, False])
        >>> torch.allclose(masked(x), dafp.prune(model, graph, plan)(x), atol=1e-6)
        True
    """
    check_same_model(model, graph)
    return zero_consumers(deep_copy(model), graph, graph.resolve(plan), compensate)


@torch.no_grad()
def zero_consumers(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool
) -> nn.Module:
    """Set the consumer weights of the channels that the resolved plan removes to zero, in place."""
    if compensate:
        compensate_means(model, graph, plan)
    for name, slices in _removed_slices(graph, plan).items():
        _zero(_tensor(model, name), slices)
    mask_norms(model, graph, plan)
    return model


@torch.no_grad()
def masked_while_running(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool
) -> nn.Module:
    """The masked model without a second set of weights: a layer is masked only while it runs.

    Weights that are used outside of their layer's forward are not masked: compare with
    `zero_consumers` too before reporting a difference.
    """
    unshared = _unshared_weights(model)
    masked = sharing_copy(model, unshared)
    if compensate:
        compensate_means(masked, graph, plan)
    slices_of, modules = _removed_slices(graph, plan), dict(modules_of(masked))
    for name in unshared:  # not only masked ones: a forward may write into its weights
        owner, _, attribute = name.rpartition(".")
        _mask_while_running(modules[owner], attribute, slices_of.pop(name, []))
    for name, slices in slices_of.items():
        _zero(_tensor(masked, name), slices)
    mask_norms(masked, graph, plan)
    return masked


Slices = list[tuple[int, Tensor]]  # axis, entries


def _removed_slices(graph: ChannelGraph, plan: PruningPlan) -> dict[str, Slices]:
    """Tensor -> the slices of it that multiply a removed channel."""
    found: dict[str, Slices] = {}
    for group in graph.groups:
        removed = sorted({*range(group.size)}.difference(plan.keep[group.name]))
        for slot in group.consumers:
            slot = _magnitude(slot, group.followers)
            times = len(slot.index) // group.size  # entries of a channel are consecutive
            entries = [slot.index[c * times + i] for c in removed for i in range(times)]
            found.setdefault(slot.param, []).append((slot.dim, torch.tensor(entries).long()))
    return found


# weight_norm divides the direction by its own length, which must not be 0
_MAGNITUDES = {"original1": "original0", "weight_v": "weight_g"}


def _magnitude(slot: Slot, followers: Sequence[Slot]) -> Slot:
    """The magnitude of a weight of weight_norm, if it has one for every channel; else the slot."""
    owner, _, attribute = slot.param.rpartition(".")
    name = f"{owner}.{_MAGNITUDES.get(attribute, '')}"
    alike = (f for f in followers if (f.param, f.dim) == (name, slot.dim))
    return next((f for f in alike if len(f.index) == len(slot.index)), slot)


def _zero(weight: Tensor, slices: Slices) -> None:
    for dim, entries in slices:
        weight.index_fill_(dim, entries.to(weight.device), 0)


def _unshared_weights(model: nn.Module) -> set[str]:
    """Names of the weights with two axes or more that belong to one layer only."""
    owners: dict[int, list[str]] = {}
    for prefix, module in modules_of(model):
        for attribute, tensor in module._parameters.items():
            if type(tensor) is nn.Parameter and tensor.dim() > 1:
                simple = "" if module._modules else f"{prefix}.{attribute}" if prefix else attribute
                owners.setdefault(id(tensor), []).append(simple)
    return {names[0] for names in owners.values() if len(names) == 1 and names[0]}


def _mask_while_running(layer: nn.Module, attribute: str, slices: Slices) -> None:
    whole = layer._parameters[attribute]
    assert whole is not None
    masks = _bit_masks(whole, slices)

    def before(module: nn.Module, args: Any) -> None:
        weight = whole.detach()
        if masks:
            weight = _without_bits(weight, masks)
        else:
            weight = weight.clone()
            _zero(weight, slices)
        module._parameters[attribute] = nn.Parameter(weight, requires_grad=False)

    def after(module: nn.Module, args: Any, output: Any) -> None:
        module._parameters[attribute] = whole

    layer.register_forward_pre_hook(before)
    layer.register_forward_hook(after, always_call=True)


# index_fill_ takes ten times as long on the inputs of a 1x1 convolution
_AS_INTEGERS = {
    torch.float32: torch.int32,
    torch.float64: torch.int64,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


def _bit_masks(weight: Tensor, slices: Slices) -> list[Tensor]:
    """Integers that are 0 in the slices and have all bits set elsewhere; none for other dtypes."""
    masks = []
    for dim, entries in slices if weight.dtype in _AS_INTEGERS else ():
        sizes = weight.shape[dim:]
        mask = weight.new_full((sizes[0],), -1, dtype=_AS_INTEGERS[weight.dtype])
        mask[entries.to(weight.device)] = 0
        mask = mask.view(-1, *[1] * (len(sizes) - 1)).expand(sizes).contiguous()
        masks.append(mask)
    return masks


def _without_bits(weight: Tensor, masks: list[Tensor]) -> Tensor:
    """A copy of the weight that is 0 where a mask is 0, also if the weight is not finite there."""
    bits = weight.view(_AS_INTEGERS[weight.dtype])
    for mask in masks:
        bits = bits & mask
    return bits.view(weight.dtype)


def _tensor(model: nn.Module, name: str) -> Tensor:
    owner, _, attribute = name.rpartition(".")
    tensor = getattr(model.get_submodule(owner), attribute)
    assert isinstance(tensor, Tensor)
    return tensor
