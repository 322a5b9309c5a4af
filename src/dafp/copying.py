"""The tensors of a network by name, and copies of it with other tensors in their place."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """Every tensor of the model by its dotted name, a shared one once, under its first name.

    Parameters and buffers first, then tensors that modules hold as plain attributes.
    """
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in _all_tensors(model):
        if id(tensor) not in seen:
            seen.add(id(tensor))
            found[name] = tensor
    return found


def _all_tensors(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
    for prefix, module in model.named_modules():
        for attribute, value in vars(module).items():
            if isinstance(value, Tensor):
                yield f"{prefix}.{attribute}" if prefix else attribute, value


def copy_with(model: nn.Module, replace: Callable[[str, Tensor], Tensor | None]) -> nn.Module:
    """A deep copy of the model in which `replace` decides what each tensor becomes.

    None leaves it to deepcopy. Shared tensors stay shared; hooks and plain attributes come along.
    """
    memo: dict[int, Any] = {}
    for name, tensor in tensors_of(model).items():
        new = replace(name, tensor)
        if new is None and not tensor.is_leaf:
            new = tensor.detach().clone()  # the result of a forward pass, kept as an attribute
        if new is None:
            continue
        if isinstance(tensor, nn.Parameter) and not isinstance(new, nn.Parameter):
            new = nn.Parameter(new, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = new
    return copy.deepcopy(model, memo)
