"""Results that are known without asking torch's slow kernels for tensors without numbers."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten


def shortcut(func: Any, args: tuple[Any, ...]) -> Any:
    """What `func` gives for tensors without numbers; NotImplemented: ask torch."""
    known = SHORTCUTS.get(func)
    return known(args) if known is not None else NotImplemented


class Shortcuts(TorchDispatchMode):
    """Takes the shortcuts while a network without numbers runs."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        out = shortcut(func, args)
        return func(*args, **(kwargs or {})) if out is NotImplemented else out


def _batch_norm(args: tuple[Any, ...]) -> Any:
    x, owned = args[0], [t for t in args[1:5] if isinstance(t, Tensor)]
    if any(t.shape[0] != x.shape[1] for t in owned):
        raise RuntimeError(f"batch norm of {owned[0].shape[0]} channels got {x.shape[1]}")
    stats = x.new_empty(x.shape[1]) if args[5] else x.new_empty(0)
    return torch.empty_like(x), stats, stats


def _batch_norm_backward(args: tuple[Any, ...]) -> Any:
    x, weight = args[1], args[2]
    like = weight if weight is not None else x.new_empty(x.shape[1])
    return _wanted(args[-1], (x, like, like))


def _convolution(args: tuple[Any, ...]) -> Any:
    x, weight, _, stride, padding, dilation, transposed, _, groups = args
    plain = x.dim() == weight.dim() == 4 and x.is_contiguous() and weight.is_contiguous()
    if transposed or not plain or x.shape[1] != weight.shape[1] * groups:
        return NotImplemented
    sizes = [
        (x.shape[d + 2] + 2 * padding[d % len(padding)]
         - dilation[d % len(dilation)] * (weight.shape[d + 2] - 1) - 1)
        // stride[d % len(stride)] + 1
        for d in range(2)
    ]  # fmt: skip
    fits = min(sizes) > 0 and weight.shape[0] % groups == 0 and x.dtype == weight.dtype
    return x.new_empty((x.shape[0], weight.shape[0], *sizes)) if fits else NotImplemented


def _convolution_backward(args: tuple[Any, ...]) -> Any:
    grad, x, weight = args[:3]
    return _wanted(args[-1], (x, weight, grad.new_empty(grad.shape[1])))


def _wanted(mask: list[bool], tensors: tuple[Tensor, ...]) -> tuple[Tensor | None, ...]:
    pairs = zip(mask, tensors, strict=True)
    return tuple(torch.empty_like(tensor) if wanted else None for wanted, tensor in pairs)


def _binary(args: tuple[Any, ...]) -> Any:
    a, b = args[:2]
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or a.dtype != b.dtype:
        return NotImplemented
    if a.shape == b.shape:
        return torch.empty_like(a)
    fits = a.dim() == b.dim() and all(q in (p, 1) for p, q in zip(a.shape, b.shape, strict=True))
    return torch.empty_like(a) if fits else NotImplemented


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
    return first.new_empty((*first.shape[:axis], width, *first.shape[axis + 1 :]))


def _same_shape(args: tuple[Any, ...]) -> Any:
    return torch.empty_like(args[0])


def _in_place(args: tuple[Any, ...]) -> Any:
    return args[0]


_ACTIVATIONS = ("relu", "silu", "sigmoid", "hardtanh", "hardswish", "hardsigmoid", "leaky_relu",
                "gelu", "elu", "tanh", "mish", "selu", "softplus")  # fmt: skip


def _ops(pattern: str, names: tuple[str, ...]) -> list[Any]:
    found = [getattr(aten, pattern.format(name), None) for name in names]
    return [op.default for op in found if op is not None]


SHORTCUTS: dict[Any, Callable[[tuple[Any, ...]], Any]] = {
    aten.native_batch_norm.default: _batch_norm,
    aten.native_batch_norm_backward.default: _batch_norm_backward,
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_backward,
    aten.add.Tensor: _binary,
    aten.mul.Tensor: _binary,
    aten.cat.default: _cat,
    **dict.fromkeys(_ops("{}", _ACTIVATIONS), _same_shape),
    **dict.fromkeys(_ops("{}_", _ACTIVATIONS), _in_place),
    **dict.fromkeys(_ops("{}_backward", ("threshold", *_ACTIVATIONS)), _same_shape),
}
