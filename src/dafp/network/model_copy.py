"""The tensors of a network by name, and copies of it with other tensors in their place."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from types import FunctionType
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .named_tensors import modules_of, tensors_of


def copy_with(model: nn.Module, replace: Callable[[str, Tensor], Tensor | None]) -> nn.Module:
    """A deep copy of the model in which `replace` decides what each tensor becomes.

    None leaves it to deepcopy. Shared tensors stay shared; hooks and plain attributes come along.
    """
    memo: dict[int, Any] = {}
    for tensor in _kept_results(model):
        memo[id(tensor)] = tensor.detach().clone()
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


def _kept_results(model: nn.Module) -> Iterator[Tensor]:
    """Results of a forward pass in lists and dicts that modules hold: deepcopy refuses them."""
    for _, module in modules_of(model):
        for key, value in vars(module).items():
            if type(value) not in (list, tuple, dict) or key in _OWN:
                continue
            held = value.values() if type(value) is dict else value
            if all(type(v) in _ATOMS for v in held):  # strides and the like, in every convolution
                continue
            for leaf in tree_leaves(value):
                if isinstance(leaf, Tensor) and not leaf.is_leaf:
                    yield leaf


def _copy_modules(model: nn.Module, memo: dict[int, Any]) -> None:
    """What deepcopy would do to ordinary modules, without asking each value how it is copied."""
    modules = [module for _, module in modules_of(model)]
    kinds = {kind for kind in {type(module) for module in modules} if _is_plain(kind)}
    plain = [module for module in modules if type(module) in kinds]
    for module in plain:
        memo[id(module)] = type(module).__new__(type(module))
    for module in plain:
        state = {k: _held(k, v, memo) for k, v in vars(module).items() if k != _COMPILED}
        if type(module).__setstate__ is nn.Module.__setstate__:
            vars(memo[id(module)]).update(state)
        else:
            memo[id(module)].__setstate__(state)


def _held(key: str, value: Any, memo: dict[int, Any]) -> Any:
    if type(value) in _ATOMS:
        return value
    if key in _OWN and not value:  # hooks and the like, of which most modules have none
        return type(value)()
    return _copied(value, memo)


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
    if kind in (dict, OrderedDict) and all(type(key) in (str, int) for key in value):
        new: dict[Any, Any] = kind()
        memo[id(value)] = new
        new.update((key, _copied(held, memo)) for key, held in value.items())
        return new
    return copy.deepcopy(value, memo)


_COMPILED = "_compiled_call_impl"  # left by Module.compile(): runs the module it was made for
_ATOMS = frozenset((int, float, str, bool, type(None), FunctionType))
_OWN = frozenset(
    key for key, value in vars(nn.Module()).items() if type(value) in (dict, OrderedDict)
)


def deep_copy(model: nn.Module) -> nn.Module:
    """copy.deepcopy, also for models that hold results of a forward pass as attributes."""
    return copy_with(model, lambda _, tensor: None)


def sharing_copy(model: nn.Module, lent: Container[str]) -> nn.Module:
    """A deep copy, but for the numbers of the tensors that are lent: these are the model's own."""
    return copy_with(model, lambda name, tensor: tensor.detach() if name in lent else None)
