"""Copies of a network in which some tensors are replaced or shared."""

import copy
from collections import OrderedDict
from collections.abc import Callable, Container, Iterator
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from .named_tensors import modules_of, tensors_of


def copy_with(model: nn.Module, replace: Callable[[str, Tensor], Tensor | None]) -> nn.Module:
    """A deep copy of the model with the tensors that `replace(name, tensor)` returns.

    If it returns None, the tensor is copied. Shared tensors stay shared; hooks and plain attributes
    are copied. Also under torch.inference_mode, the copy is one that can be trained.
    """
    with torch.inference_mode(False):
        return _copied(model, replace)


def _copied(model: nn.Module, replace: Callable[[str, Tensor], Tensor | None]) -> nn.Module:
    memo: dict[int, Any] = {}
    for tensor in _results_in_containers(model):
        memo[id(tensor)] = tensor.detach().clone()
    for name, tensor in tensors_of(model).items():
        new = replace(name, tensor)
        if new is None and not tensor.is_leaf:
            new = tensor.detach().clone()  # the result of a forward pass, stored as an attribute
        if new is None:
            continue
        if isinstance(tensor, nn.Parameter) and not isinstance(new, nn.Parameter):
            new = nn.Parameter(new, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = new
    _copy_modules(model, memo)
    return copy.deepcopy(model, memo)


def _results_in_containers(model: nn.Module) -> Iterator[Tensor]:
    """Results of forward passes in lists and dicts of modules: deepcopy refuses such tensors."""
    for _, module in modules_of(model):
        for key, value in vars(module).items():
            if type(value) not in _CONTAINERS or key in _OWN:
                continue
            held = value.values() if type(value) is dict else value
            if _ATOMS.issuperset(map(type, held)):  # strides and the like, in every convolution
                continue
            for leaf in tree_leaves(value):
                if isinstance(leaf, Tensor) and not leaf.is_leaf:
                    yield leaf


def _copy_modules(model: nn.Module, memo: dict[int, Any]) -> None:
    """Copy the ordinary modules of a model into the memo of deepcopy.

    The result is that of deepcopy, which is slower because it looks up for every single value how
    it is copied: tracing and pruning together take about 9 % longer with deepcopy alone.
    """
    modules = [module for _, module in modules_of(model)]
    ordinary = {kind for kind in {type(module) for module in modules} if _copies_as_module(kind)}
    modules = [module for module in modules if type(module) in ordinary]
    for module in modules:
        memo[id(module)] = type(module).__new__(type(module))
    for module in modules:
        state = _copy_state(vars(module), memo)
        if type(module).__setstate__ is nn.Module.__setstate__:
            vars(memo[id(module)]).update(state)
        else:
            memo[id(module)].__setstate__(state)


def _copy_state(state: dict[str, Any], memo: dict[int, Any]) -> dict[str, Any]:
    """Copies of the attributes of a module. Most are numbers, names and empty dicts of hooks."""
    new = state.copy()
    new.pop(_COMPILED, None)
    for key, value in new.items():
        kind = type(value)
        if kind in _ATOMS:
            continue
        if key in _OWN and not value:
            new[key] = kind()
        else:
            new[key] = _copy_value(value, memo)
    return new


def _copies_as_module(cls: type) -> bool:
    """Whether the class defines no copying or pickling of its own."""
    methods = ("__reduce__", "__reduce_ex__", "__getstate__")
    same = all(getattr(cls, name) is getattr(nn.Module, name) for name in methods)
    return same and not hasattr(cls, "__deepcopy__") and not hasattr(cls, "__slots__")


def _copy_value(value: Any, memo: dict[int, Any]) -> Any:
    kind = type(value)
    if kind in _ATOMS or (kind is tuple and _ATOMS.issuperset(map(type, value))):
        return value
    if id(value) in memo:
        return memo[id(value)]
    if kind in _DICTS and _KEYS.issuperset(map(type, value)):
        new: Any = kind()
        memo[id(value)] = new
        for key, item in value.items():
            new[key] = memo[id(item)] if id(item) in memo else _copy_value(item, memo)
        return new
    if kind is Tensor and _is_ordinary(value):
        new = memo[id(value)] = _copy_tensor(value, memo)
        return new
    if kind is set and _ATOMS.issuperset(map(type, value)):
        new = memo[id(value)] = value.copy()
        return new
    return copy.deepcopy(value, memo)


def _is_ordinary(tensor: Tensor) -> bool:
    """Is this a tensor with nothing but numbers, of which it holds all that are in its storage?"""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.requires_grad:
        return False
    if tensor.is_quantized or tensor.is_inference() or vars(tensor):
        return False
    whole = tensor.untyped_storage().nbytes() == tensor.nbytes
    return whole and tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())


def _copy_tensor(tensor: Tensor, memo: dict[int, Any]) -> Tensor:
    """As Tensor.__deepcopy__, which keeps copies of storages in the memo: they stay shared."""
    storages = memo.setdefault("torch", {})  # type: ignore[call-overload]
    storage = tensor.untyped_storage()
    if storage._cdata in storages:
        return copy.deepcopy(tensor, memo)
    new = tensor.detach().clone()
    storages[storage._cdata] = new.untyped_storage()
    return new


_COMPILED = "_compiled_call_impl"  # set by Module.compile(); a copy of it would run the original
_ATOMS = frozenset((int, float, str, bool, type(None), FunctionType))
_CONTAINERS = frozenset((list, tuple, dict))
_DICTS = frozenset((dict, OrderedDict))
_KEYS = frozenset((str, int))
_OWN = frozenset(
    key for key, value in vars(nn.Module()).items() if type(value) in (dict, OrderedDict)
)


def deep_copy(model: nn.Module) -> nn.Module:
    """copy.deepcopy, also for models that store results of a forward pass as attributes."""
    return copy_with(model, lambda _, tensor: None)


def sharing_copy(model: nn.Module, shared: Container[str]) -> nn.Module:
    """A deep copy that shares the data of the named tensors with the model."""
    return copy_with(model, lambda name, tensor: tensor.detach() if name in shared else None)


def in_float32(model: nn.Module) -> nn.Module:
    """A deep copy with float32 tensors in place of half-precision ones."""
    half = (torch.float16, torch.bfloat16)
    return copy_with(model, lambda _, t: t.detach().float() if t.dtype in half else None)
