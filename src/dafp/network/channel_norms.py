"""Norms over channels (LayerNorm, RMSNorm, global response norm): formulas, and how to find them.

A module is recognised by what it computes: a copy runs on random numbers, and its output is
compared with the formulas.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .calling import FORWARD_ERRORS
from .model_copy import copy_with
from .named_tensors import modules_of

KINDS = ("layer", "rms", "rms_from_one", "response")
_EPSILONS = (1e-6, 1e-5, 1e-8, 1e-12)
_RANKS = (4, 3, 2)  # axes of an input
_SCALE = 1e-2  # of random inputs, so that outputs show which eps it is
_ALIKE = 1e-3  # a norm may compute in float32 or bfloat16


@dataclass(frozen=True)
class ChannelNorm:
    """A norm with statistics over channels.

    kind: "layer" (LayerNorm), "rms" (RMSNorm), "rms_from_one" (RMSNorm with scale 1 + weight) or
    "response" (the global response norm of ConvNeXt-V2).
    """

    kind: str
    axis: int  # of the channels
    eps: float
    whole: bool = False  # statistics over all axes but the first: GroupNorm with one group


def normalise(
    x: Tensor, norm: ChannelNorm, weight: Tensor | None, bias: Tensor | None, kept: Tensor
) -> Tensor:
    """The norm computed over the kept channels only; the others are zero in its output."""
    axis = norm.axis % x.dim()
    kept = kept.to(x.device)
    part = x.index_select(axis, kept)
    shape = [1] * x.dim()
    shape[axis] = -1
    scale, shift = (
        t.reshape(-1)[kept].reshape(shape) if t is not None else None for t in (weight, bias)
    )
    out = _normalised(part, norm, scale, shift, axis)
    whole: Tensor = torch.zeros_like(x).index_copy(axis, kept, out.to(x.dtype))
    return whole


def _normalised(
    x: Tensor, norm: ChannelNorm, scale: Tensor | None, shift: Tensor | None, axis: int
) -> Tensor:
    if norm.kind == "response":
        assert scale is not None
        assert shift is not None
        others = [a for a in range(1, x.dim()) if a != axis]
        length = torch.linalg.vector_norm(x, dim=others, keepdim=True)
        share: Tensor = length / (length.mean(axis, keepdim=True) + norm.eps)
        return x + shift + scale * x * share
    axes = list(range(1, x.dim())) if norm.whole else [axis]
    if norm.kind == "layer":
        x = x - x.mean(axes, keepdim=True)
    power: Tensor = x.square().mean(axes, keepdim=True) + norm.eps
    x = x * power.rsqrt()
    if scale is not None:
        x = x * (1 + scale if norm.kind == "rms_from_one" else scale)
    return x if shift is None else x + shift


ByRank = Mapping[int, ChannelNorm]  # number of axes of the input -> the norm


def channel_norms(model: nn.Module) -> dict[str, ByRank]:
    """The modules of a model that are norms over channels, by dotted name."""
    found: dict[str, ByRank] = {}
    probed: dict[Any, ByRank] = {}
    for name, module in modules_of(model):
        norms = _known(module)
        if norms is None and _may_be_norm(module):
            key = _signature(module)
            if key not in probed:
                probed[key] = dict(_probe(module))
            norms = probed[key]
        if norms:
            found[name] = norms
    return found


def _known(module: nn.Module) -> ByRank | None:
    """The norm of torch that this is; an empty dictionary for any other layer of torch."""
    forward = type(module).forward
    norm = None
    if isinstance(module, nn.LayerNorm) and forward is nn.LayerNorm.forward:
        if len(module.normalized_shape) == 1:
            norm = ChannelNorm("layer", -1, module.eps)
    elif isinstance(module, nn.RMSNorm) and forward is nn.RMSNorm.forward:
        if len(module.normalized_shape) == 1:
            dtype = module.weight.dtype if module.weight is not None else torch.float32
            eps = torch.finfo(dtype).eps if module.eps is None else module.eps
            norm = ChannelNorm("rms", -1, eps)
    elif isinstance(module, nn.GroupNorm) and forward is nn.GroupNorm.forward:
        if module.num_groups == 1:
            norm = ChannelNorm("layer", 1, module.eps, whole=True)
    elif not type(module).__module__.startswith("torch.nn"):
        return None
    return dict.fromkeys((*_RANKS, 5), norm) if norm is not None else {}


def _may_be_norm(module: nn.Module) -> bool:
    owned = [p for p in module._parameters.values() if p is not None]
    sizes = {p.numel() for p in owned}
    wide = all(max(p.shape, default=0) == p.numel() > 1 for p in owned)
    return not module._modules and len(sizes) == 1 and len(owned) <= 2 and wide


def _signature(module: nn.Module) -> Any:
    plain = {k: v for k, v in vars(module).items() if type(v) in (int, float, str, bool, tuple)}
    shapes = {k: tuple(p.shape) for k, p in module._parameters.items() if p is not None}
    return type(module), repr(sorted(plain.items(), key=lambda item: item[0])), repr(shapes)


@torch.no_grad()
def _probe(module: nn.Module) -> Iterator[tuple[int, ChannelNorm]]:
    """(Number of axes, norm) for every number of axes with which the module is one."""
    generator = torch.Generator().manual_seed(0)

    def random(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.double)

    copy = copy_with(module, lambda _, t: random(tuple(t.shape)) if t.is_floating_point() else None)
    width = next(copy.parameters()).numel()
    for rank in _RANKS:
        for axis in (-1, 1):
            sizes = [2, 3, 4, 5][:rank]
            sizes[axis] = width
            x = _SCALE * random(tuple(sizes))
            x = x + _SCALE / 2  # so that LayerNorm and RMSNorm differ
            try:
                out = type(module).forward(copy, x.clone())
            except FORWARD_ERRORS:
                continue
            norm = _recognise(copy, x, out, axis)
            if norm is not None:
                yield rank, norm
                break


def _recognise(module: nn.Module, x: Tensor, out: Any, axis: int) -> ChannelNorm | None:
    """The norm that gives this output, if any does."""
    if not isinstance(out, Tensor) or out.shape != x.shape:
        return None
    weight, bias = weight_and_bias(module)
    values = [v for v in vars(module).values() if type(v) is float and 0 < v < 1e-2]
    every = torch.arange(x.shape[axis])
    for kind in KINDS:
        if kind == "response" and (weight is None or bias is None or x.dim() < 3):
            continue
        spans = (False, True) if kind == "layer" and axis == 1 else (False,)
        for eps, whole in itertools.product(dict.fromkeys((*values, *_EPSILONS)), spans):
            norm = ChannelNorm(kind, axis, eps, whole)
            gap = (normalise(x, norm, weight, bias, every) - out).abs().max()
            if float(gap) <= _ALIKE * float(out.abs().max()):
                return norm
    return None


def weight_and_bias(module: nn.Module) -> tuple[Tensor | None, Tensor | None]:
    """The scale and the shift of a norm: its first and its second parameter."""
    owned = [p for p in module._parameters.values() if p is not None]
    return (owned[0] if owned else None), (owned[1] if len(owned) > 1 else None)
