"""Skeletons: copies of a network whose tensors have shapes but no data."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map

from .calling import takes_images
from .model_copy import copy_with, deep_copy
from .named_tensors import registered

Empty = Callable[[Tensor, tuple[int, ...] | None], Tensor]


@dataclass(frozen=True)
class TensorKind:
    """The kind of tensors in a skeleton: meta, fake or real. Integer tensors keep their values."""

    empty: Empty | None  # (tensor, shape) -> one without data; None: real tensors
    constants: int = 0  # plain attributes of at most so many entries keep their values
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


def meta_tensors(constants: int = 0) -> TensorKind:
    """Meta tensors: the fastest. A forward that uses the device of its input may fail."""

    def empty(tensor: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        if shape is None:
            return torch.empty_like(tensor, device="meta")
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    return TensorKind(empty, constants)


def fake_tensors() -> TensorKind:
    """Fake tensors: no data, but the original devices."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    meta = meta_tensors().empty
    assert meta is not None

    def empty(tensor: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        return FakeTensor(mode, meta(tensor, shape), tensor.device)

    return TensorKind(empty, context=lambda: mode)


FEW = 16  # the strides of a detector's levels, which its forward reads, are such constants
REAL_TENSORS = TensorKind(None)


def tensor_kinds() -> tuple[TensorKind, ...]:
    """All kinds, the fastest first, real tensors last."""
    return meta_tensors(), meta_tensors(FEW), fake_tensors(), REAL_TENSORS


def skeleton_of(model: nn.Module, tensor_kind: TensorKind) -> nn.Module:
    """A copy of the model with floating-point tensors of this kind."""
    empty = tensor_kind.empty
    if empty is None:
        return deep_copy(model)
    own = registered(model) if tensor_kind.constants else {}

    def one(name: str, tensor: Tensor) -> Tensor:
        constant = tensor.numel() <= tensor_kind.constants and name not in own
        if constant or not tensor.is_floating_point():
            return tensor.detach().clone()
        return empty(tensor, None)

    return copy_with(model, one)


def example_for(example: Any, tensor_kind: TensorKind, times: int = 1) -> Any:
    """The example as tensors of this kind, with its batch repeated `times` times."""
    if times > 1 and takes_images(example):
        example, times = _longer_lists(example, times), 1

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if tensor_kind.empty is not None and value.is_floating_point():
            rows = (times * value.shape[0], *value.shape[1:]) if value.dim() else ()
            return tensor_kind.empty(value, tuple(rows))
        return torch.cat([value] * times) if times > 1 and value.dim() else value

    return tree_map(one, example)


def _longer_lists(example: Any, times: int) -> Any:
    """The lists of images and of their targets, repeated."""
    if isinstance(example, Mapping):
        return {name: _longer(value, times) for name, value in example.items()}
    return tuple(_longer(value, times) for value in example)


def _longer(argument: Any, times: int) -> Any:
    return list(argument) * times if isinstance(argument, (list, tuple)) else argument
