"""Slices the tensors of a network: `slicing_for` computes what to slice, `slice_model` does it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..network.model_copy import copy_with
from ..network.named_tensors import modules_of, registered
from .label_index import LabelIndex, kept_positions, narrowed_norms


@dataclass(frozen=True)
class Slicing:
    """All changes to a model: kept positions by tensor and axis, attributes, input selections."""

    positions: dict[tuple[str, int], Tensor]
    indices: dict[str, Tensor]  # index tensors of the model: their new values
    attributes: dict[str, dict[str, Any]]  # module -> attribute -> value
    selections: dict[str, Tensor]  # module -> channels of its input that it selects


def slicing_for(model: nn.Module, label_index: LabelIndex, kept: Tensor) -> Slicing:
    """The slicing that keeps exactly these labels (label -> whether, or how often, it is kept)."""
    positions = kept_positions(label_index, kept)
    return Slicing(
        positions,
        _renumber(model, label_index, kept, positions),
        _attributes(model, label_index, kept, positions),
        _selections(label_index, kept),
    )


Make = Callable[[Tensor, dict[int, Tensor]], Tensor]


def slice_model(model: nn.Module, slicing: Slicing, make: Make | None = None) -> nn.Module:
    """A sliced copy of a model. `make(tensor, {axis: positions})`, if given, makes its tensors."""
    by_tensor: dict[str, dict[int, Tensor]] = {}
    for (name, dim), positions in slicing.positions.items():
        by_tensor.setdefault(name, {})[dim] = positions

    def replace(name: str, tensor: Tensor) -> Tensor | None:
        if name in slicing.indices:
            return slicing.indices[name].to(tensor)
        if make is not None:
            return make(tensor, by_tensor.get(name, {}))
        return slice_tensor(tensor, by_tensor[name]) if name in by_tensor else None

    small = copy_with(model, replace)
    apply_attributes(small, slicing.attributes)
    for name, index in slicing.selections.items():
        module = small.get_submodule(name)
        owner = next(module.parameters())
        add_selection(module, index.to(owner.device))
    return small


@torch.no_grad()
def slice_tensor(tensor: Tensor, axes: dict[int, Tensor]) -> Tensor:
    """The entries at these positions, in the memory format of the tensor."""
    out = tensor.detach() if axes else tensor.detach().clone()
    for dim, positions in axes.items():
        out = out.index_select(dim, positions.to(tensor.device))
    last = torch.channels_last
    if (
        tensor.dim() == 4
        and tensor.is_contiguous(memory_format=last)
        and not tensor.is_contiguous()
    ):
        out = out.contiguous(memory_format=last)
    return out


def apply_attributes(model: nn.Module, attributes: dict[str, dict[str, Any]]) -> None:
    modules = dict(modules_of(model))
    for name, values in attributes.items():
        module = modules[name] if name in modules else model.get_submodule(name)
        for attribute, value in values.items():
            setattr(module, attribute, value)


def add_selection(module: nn.Module, index: Tensor) -> None:
    """Make the module select these channels of its input (axis 1, or the last for Linear)."""
    if selects(module):  # select from its earlier selection
        old: Tensor = vars(module)["_buffers"]["index"]
        module.index = old.index_select(0, index)
        return
    module.register_buffer("index", index)
    module.register_forward_pre_hook(select_input, with_kwargs=True)


def selects(module: nn.Module) -> bool:
    """Does this module select channels of its input?"""
    return select_input in module._forward_pre_hooks.values()


def select_input(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Forward pre-hook: select channels, or features of a linear layer."""
    axis = -1 if isinstance(module, nn.Linear) else 1
    if args:
        return (args[0].index_select(axis, module.index), *args[1:]), kwargs
    name = next(key for key, value in kwargs.items() if isinstance(value, Tensor))
    return args, {**kwargs, name: kwargs[name].index_select(axis, module.index)}


def _renumber(
    model: nn.Module,
    label_index: LabelIndex,
    kept: Tensor,
    positions: dict[tuple[str, int], Tensor],
) -> dict[str, Tensor]:
    """New values of index tensors whose channels moved or were removed."""
    new = {}
    for use in label_index.indices:
        times = torch.where(use.source < 0, 1, kept[use.source.clamp(min=0)].long())
        if bool((times == 1).all()) and (use.tensor, 0) not in positions:
            continue
        numbers = times.cumsum(0) - 1
        old = _tensor(model, use.tensor)
        entries = positions.get((use.tensor, 0), torch.arange(old.numel()))
        new[use.tensor] = numbers[old.cpu()[entries]]
    return new


def _attributes(
    model: nn.Module,
    label_index: LabelIndex,
    kept: Tensor,
    positions: dict[tuple[str, int], Tensor],
) -> dict[str, dict[str, Any]]:
    """New values of attributes that hold widths: of torch layers, and those that trials found."""
    attributes: dict[str, dict[str, Any]] = {}
    touched = {name.rpartition(".")[0] for name, _ in positions}
    names = {id(t): n for n, t in registered(model).items()}
    for name, module in modules_of(model):
        if name in touched or _owns_some(module, names, positions):
            values = _layer_attributes(module, names, positions)
            if values:
                attributes[name] = values
    for count in label_index.width_attributes:
        known = count.labels[count.labels >= 0]
        number = int(kept[known].sum()) + count.labels.numel() - known.numel()
        module = model.get_submodule(count.module)
        values = attributes.setdefault(count.module, {})
        if count.item is None:
            values[count.attribute] = number
        else:
            old = values.get(count.attribute, getattr(module, count.attribute))
            new = list(old)
            new[count.item] = number
            values[count.attribute] = type(old)(new)
    return attributes


def _owns_some(
    module: nn.Module, names: dict[int, str], positions: dict[tuple[str, int], Tensor]
) -> bool:
    """Does the module hold a tensor that is sliced, perhaps one that it shares with another?"""
    owned = [*module._parameters.values(), *module._buffers.values()]
    found = [names.get(id(t), "") for t in owned if t is not None]
    return any((name, dim) in positions for name in found for dim in (0, 1))


def _layer_attributes(  # noqa: PLR0911 - one return per kind of layer
    module: nn.Module, names: dict[int, str], positions: dict[tuple[str, int], Tensor]
) -> dict[str, Any]:
    def size(tensor: Tensor | None, dim: int) -> int:
        if tensor is None:
            return 0
        left = positions.get((names.get(id(tensor), ""), dim))
        return tensor.shape[dim] if left is None else left.numel()

    if isinstance(module, nn.modules.conv._ConvNd):
        first, second = size(module.weight, 0), size(module.weight, 1)
        groups, depthwise = module.groups, module.groups == module.in_channels > 1
        if module.transposed:
            groups = first if depthwise else groups
            return {"in_channels": first, "out_channels": second * groups, "groups": groups}
        if depthwise:
            groups = first * module.groups // module.out_channels
        return {"in_channels": second * groups, "out_channels": first, "groups": groups}
    if isinstance(module, nn.Linear):
        return {"in_features": size(module.weight, 1), "out_features": size(module.weight, 0)}
    if isinstance(module, nn.RNNBase):
        return {"input_size": size(module.get_parameter("weight_ih_l0"), 1)}
    if isinstance(module, nn.RNNCellBase):
        return {"input_size": size(module.weight_ih, 1), "hidden_size": size(module.weight_hh, 1)}
    if isinstance(module, nn.Embedding):
        return {"embedding_dim": size(module.weight, 1)}
    if isinstance(module, nn.modules.batchnorm._NormBase):
        owner = module.weight if module.weight is not None else module.running_mean
        return {"num_features": size(owner, 0)} if owner is not None else {}
    if isinstance(module, nn.GroupNorm):
        width = size(module.weight, 0)
        groups = width * module.num_groups // module.num_channels
        return {"num_channels": width, "num_groups": 1 if module.num_groups == 1 else groups}
    if isinstance(module, nn.PReLU):
        return {"num_parameters": size(module.weight, 0)}
    return {}


def _selections(label_index: LabelIndex, kept: Tensor) -> dict[str, Tensor]:
    """module -> channels of a residual stream that it selects.

    The module is a consumer, or the BN before it if all its consumers select the same channels.
    """
    narrow = narrowed_norms(label_index, kept)
    chosen = dict(narrow)
    for selection in label_index.selections:
        lives = kept[selection.target].bool()
        if selection.norm not in narrow and not bool(lives.all()):
            chosen[selection.consumer] = lives.nonzero().flatten()
    return chosen


def _tensor(model: nn.Module, name: str) -> Tensor:
    prefix, _, attribute = name.rpartition(".")
    value = getattr(model.get_submodule(prefix), attribute)
    assert isinstance(value, Tensor)
    return value
