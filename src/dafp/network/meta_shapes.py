"""Outputs of common operators on tensors without data, faster than the meta kernels of torch."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from .dispatch_mode import UncompiledMode

aten = torch.ops.aten


def meta_output(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The output of `func` for tensors without data; NotImplemented if torch has to compute it."""
    known = META_OUTPUTS.get(func)
    if known is not None and _SHAPELESS.issuperset(kwargs) and _no_data(args):
        return known(args)
    return _no_entries(args, kwargs) if func is aten.empty.memory_format else NotImplemented


def _no_data(args: tuple[Any, ...]) -> bool:
    """Has any of the tensors no data? Constants of a forward, such as positions, have some."""
    for value in args:
        tensors = value if type(value) in (list, tuple) else (value,)
        for tensor in tensors:
            if isinstance(tensor, Tensor) and (tensor.is_meta or type(tensor) is FakeTensor):
                return True
    return False


_SHAPELESS = frozenset(("alpha", "approximate"))  # keywords that do not change shape or type


class MetaOutputMode(UncompiledMode):
    """The dispatch mode that uses `meta_output` while a network without data runs."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        out = meta_output(func, args, kwargs)
        return func(*args, **kwargs) if out is NotImplemented else out


def _is_meta(*tensors: Tensor) -> bool:
    """Are all of these meta tensors, not fake tensors (which have a device)?"""
    return all(t.is_meta and type(t) is not FakeTensor for t in tensors)


def _like(x: Tensor) -> Tensor:
    """torch.empty_like, faster for meta tensors."""
    if _is_meta(x):
        for layout in (torch.contiguous_format, torch.channels_last):
            if x.is_contiguous(memory_format=layout):
                return torch.empty(x.shape, dtype=x.dtype, device="meta", memory_format=layout)
    return torch.empty_like(x)


def _sized(x: Tensor, shape: Sequence[int]) -> Tensor:
    """x.new_empty, faster for meta tensors."""
    if _is_meta(x):
        return torch.empty(shape, dtype=x.dtype, device="meta")
    return x.new_empty(shape)


def _no_entries(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The empty workspace that torch allocates for every batch norm."""
    device = kwargs.get("device")
    if list(args[0]) != [0] or device is None or device.type != "meta":
        return NotImplemented
    return torch.empty(0, dtype=kwargs.get("dtype"), device="meta")


def _batch_norm(args: tuple[Any, ...]) -> Any:
    x, owned = args[0], [t for t in args[1:5] if isinstance(t, Tensor)]
    if any(t.shape[0] != x.shape[1] for t in owned):
        raise RuntimeError(f"batch norm of {owned[0].shape[0]} channels got {x.shape[1]}")
    stats = _sized(x, (x.shape[1],)) if args[5] else _sized(x, (0,))
    return _like(x), stats, stats


def _batch_norm_backward(args: tuple[Any, ...]) -> Any:
    x, weight = args[1], args[2]
    like = weight if weight is not None else _sized(x, (x.shape[1],))
    return _wanted(args[-1], (x, like, like))


def _convolution(args: tuple[Any, ...]) -> Any:
    x, weight, _, stride, padding, dilation, transposed, _, groups = args
    plain = x.dim() == weight.dim() == 4 and x.is_contiguous() and weight.is_contiguous()
    if transposed or not plain or x.shape[1] != weight.shape[1] * groups:
        return NotImplemented
    sizes = [
        (
            x.shape[d + 2]
            + 2 * padding[d % len(padding)]
            - dilation[d % len(dilation)] * (weight.shape[d + 2] - 1)
            - 1
        )
        // stride[d % len(stride)]
        + 1
        for d in range(2)
    ]
    fits = min(sizes) > 0 and weight.shape[0] % groups == 0 and x.dtype == weight.dtype
    return _sized(x, (x.shape[0], weight.shape[0], *sizes)) if fits else NotImplemented


def _convolution_backward(args: tuple[Any, ...]) -> Any:
    grad, x, weight = args[:3]
    return _wanted(args[-1], (x, weight, _sized(grad, (grad.shape[1],))))


def _wanted(mask: list[bool], tensors: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    pairs = zip(mask, tensors, strict=True)
    return tuple(_like(tensor) if wanted else None for wanted, tensor in pairs)


def _binary(args: tuple[Any, ...]) -> Any:
    a, b = args[:2]
    if not isinstance(a, Tensor) or not a.is_floating_point():
        return NotImplemented
    if type(b) in (int, float):
        return _like(a)
    if not isinstance(b, Tensor) or a.dtype != b.dtype:
        return NotImplemented
    if a.shape == b.shape:
        return _like(a)
    sizes = [[1] * (max(a.dim(), b.dim()) - t.dim()) + list(t.shape) for t in (a, b)]
    if not all(p == q or 1 in (p, q) for p, q in zip(*sizes, strict=True)):
        return NotImplemented
    shape = [q if p == 1 else p for p, q in zip(*sizes, strict=True)]
    whole = next((t for t in (a, b) if list(t.shape) == shape), None)
    return _like(whole) if whole is not None else _sized(a, shape)


def _binary_in_place(args: tuple[Any, ...]) -> Any:
    a, b = args[:2]
    if not _is_meta(a) or not a.is_floating_point():
        return NotImplemented
    if isinstance(b, Tensor) and (a.dtype != b.dtype or a.shape != b.shape):
        return NotImplemented
    return a


def _reduction(args: tuple[Any, ...]) -> Any:
    x, dims = args[0], args[1] if len(args) > 1 else None
    if not x.is_floating_point() or not dims or not x.dim():
        return NotImplemented
    gone = {dim % x.dim() for dim in dims}
    if len(args) > 2 and args[2]:
        return _sized(x, [1 if d in gone else size for d, size in enumerate(x.shape)])
    return _sized(x, [size for d, size in enumerate(x.shape) if d not in gone])


def _layer_norm(args: tuple[Any, ...]) -> Any:
    x, shape = args[0], list(args[1])
    before = list(x.shape[: -len(shape)])
    owned = [t for t in args[2:4] if t is not None]
    if [*before, *shape] != list(x.shape) or any(list(t.shape) != shape for t in owned):
        return NotImplemented
    stats = [*before, *[1] * len(shape)]
    return _sized(x, x.shape), _sized(x, stats), _sized(x, stats)


def _layer_norm_backward(args: tuple[Any, ...]) -> Any:
    return _wanted(args[-1], (args[1], args[5], args[6]))


def _group_norm(args: tuple[Any, ...]) -> Any:
    x, weight, bias, rows, width, pixels, groups = args[:7]
    owned = [t for t in (weight, bias) if t is not None]
    sizes = (x.shape[0], x.shape[1], math.prod(x.shape[2:]))
    if sizes != (rows, width, pixels) or width % groups or any(len(t) != width for t in owned):
        return NotImplemented
    return _sized(x, x.shape), _sized(x, (rows, groups)), _sized(x, (rows, groups))


def _group_norm_backward(args: tuple[Any, ...]) -> Any:
    return _wanted(args[-1], (args[1], args[4], args[4]))


def _addmm(args: tuple[Any, ...]) -> Any:
    bias, a, b = args[:3]
    out = _mm((a, b))
    if out is NotImplemented or bias.dtype != a.dtype or tuple(bias.shape) != (b.shape[1],):
        return NotImplemented
    return out


def _mm(args: tuple[Any, ...]) -> Any:
    a, b = args
    fits = a.dim() == b.dim() == 2 and a.shape[1] == b.shape[0] and a.dtype == b.dtype
    return _sized(a, (a.shape[0], b.shape[1])) if fits else NotImplemented


def _cat(args: tuple[Any, ...]) -> Any:
    parts, axis = args[0], args[1] if len(args) > 1 else 0
    first = parts[0]
    others = [slice(0, axis), slice(axis + 1, None)]
    for part in parts:
        alike = part.dim() == first.dim() > axis >= 0 and part.dtype == first.dtype
        if not (alike and all(part.shape[o] == first.shape[o] for o in others)):
            return NotImplemented
        if not part.is_contiguous():
            return NotImplemented
    width = sum(part.shape[axis] for part in parts)
    return _sized(first, (*first.shape[:axis], width, *first.shape[axis + 1 :]))


def _index_add(args: tuple[Any, ...]) -> Any:
    """What a selection of channels gives back; torch refuses an index that has values."""
    x, dim, index, source = args[:4]
    shape = list(x.shape)
    if index.dim() != 1 or not -x.dim() <= dim < x.dim() or x.dtype != source.dtype:
        return NotImplemented
    shape[dim] = index.numel()
    return _like(x) if list(source.shape) == shape else NotImplemented


def _same_shape(args: tuple[Any, ...]) -> Any:
    return _like(args[0])


def _in_place(args: tuple[Any, ...]) -> Any:
    return args[0]


_ACTIVATIONS = (
    "relu",
    "silu",
    "sigmoid",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "leaky_relu",
    "gelu",
    "elu",
    "tanh",
    "mish",
    "selu",
    "softplus",
)


_ARITHMETIC = ("add", "sub", "mul", "div")


def _ops(pattern: str, names: tuple[str, ...]) -> list[Any]:
    found = [getattr(aten, pattern.format(name), None) for name in names]
    return [op.default for op in found if op is not None]


META_OUTPUTS: dict[Any, Callable[[tuple[Any, ...]], Any]] = {
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.native_layer_norm.default: _layer_norm,
    aten.native_layer_norm_backward.default: _layer_norm_backward,
    aten.native_group_norm.default: _group_norm,
    aten.native_group_norm_backward.default: _group_norm_backward,
    aten.addmm.default: _addmm,
    aten.mm.default: _mm,
    aten.mean.dim: _reduction,
    aten.sum.dim_IntList: _reduction,
    **dict.fromkeys((getattr(aten, n).Tensor for n in _ARITHMETIC), _binary),
    **dict.fromkeys((getattr(aten, f"{n}_").Tensor for n in _ARITHMETIC), _binary_in_place),
    aten.div.Scalar: _binary,
    aten.mul.Scalar: _binary,
    aten.cat.default: _cat,
    aten.index_add.default: _index_add,
    **dict.fromkeys(_ops("{}", _ACTIVATIONS), _same_shape),
    **dict.fromkeys(_ops("{}_", _ACTIVATIONS), _in_place),
    **dict.fromkeys(_ops("{}_backward", ("threshold", *_ACTIVATIONS)), _same_shape),
}
