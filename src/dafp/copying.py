"""The tensors of a network by name, and copies of it with other tensors in their place."""

import copy
from collections import OrderedDict
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
    _copy_modules(model, memo)
    return copy.deepcopy(model, memo)


def _copy_modules(model: nn.Module, memo: dict[int, Any]) -> None:
    """What deepcopy would do to ordinary modules, without asking each value how it is copied."""
    plain = [module for module in model.modules() if _is_plain(type(module))]
    for module in plain:
        memo[id(module)] = type(module).__new__(type(module))
    for module in plain:
        state = {key: _copied(value, memo) for key, value in module.__getstate__().items()}
        memo[id(module)].__setstate__(state)


def _is_plain(cls: type) -> bool:
    """Has this class no way of its own to be copied?"""
    ways = ("__reduce__", "__reduce_ex__", "__getstate__")
    same = all(getattr(cls, way) is getattr(nn.Module, way) for way in ways)
    return same and not hasattr(cls, "__deepcopy__") and not hasattr(cls, "__slots__")


def _copied(value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _ATOMS or (kind is tuple and all(type(v) in _ATOMS for v in value)):
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind in (dict, OrderedDict) and all(type(key) is str for key in value):
        new: dict[str, Any] = kind()
        memo[id(value)] = new
        new.update((key, _copied(held, memo)) for key, held in value.items())
        return new
    return copy.deepcopy(value, memo)


_ATOMS = frozenset((int, float, str, bool, type(None)))
