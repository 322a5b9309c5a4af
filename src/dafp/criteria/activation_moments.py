"""Mean and standard deviation of the inputs of a consumer: from a BN's γ and β, or measured."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..graph.label_index import LabelIndex
from ..graph.trace_log import Consumer, ElementwiseStep, TensorName
from ..network.calling import batches_of, eval_mode, run_on

aten = torch.ops.aten
_NODES = 257  # points of the quadrature, over ±6 standard deviations
_RANGE = 6.0


@dataclass(frozen=True)
class Moments:
    """Mean and standard deviation of each input channel of a consumer."""

    mean: Tensor
    std: Tensor


def activation_moments(
    tensors: dict[str, Tensor], label_index: LabelIndex, consumer: Consumer
) -> Moments | None:
    """Moments of σ(β + γz), z ~ N(0, 1), for the inputs of one consumer; None if unknown.

    σ is the composition of the elementwise functions between the scale and the consumer. ReLU has a
    closed form; anything else is integrated numerically.
    """
    if consumer.steps is None or not consumer.source.numel() or bool((consumer.source < 0).any()):
        return None
    if not bool(label_index.roles["scale"][consumer.source].all()):
        return None
    both = _scale_and_shift(tensors, label_index, consumer.source)
    if both is None:
        return None
    gamma, beta = both
    names = [step.function.overloadpacket.__name__.rstrip("_") for step in consumer.steps]
    if names == ["relu"]:
        return relu_moments(gamma, beta)
    if not _can_replay(label_index, consumer):
        return None
    return _quadrature(tensors, gamma, beta, consumer.steps)


@torch.no_grad()
def measured_spread(
    model: nn.Module, label_index: LabelIndex, batches: Iterable[Any]
) -> dict[str, Tensor]:
    """Weight -> standard deviation of each input of its layer, over images and positions."""
    sums: dict[str, Tensor] = {}  # number, sum and sum of squares of each input
    hooks = []
    for name in {
        consumer.weight for consumer in label_index.consumers if consumer.weight.endswith(".weight")
    }:
        layer = model.get_submodule(name.removesuffix(".weight"))
        if isinstance(layer, (nn.modules.conv._ConvNd, nn.Linear)):
            hooks.append(layer.register_forward_hook(_add_moments_hook(name, sums)))
    count = 0
    try:
        with eval_mode(model):
            for batch in batches_of(batches, "shift_aware"):
                run_on(model, batch, count)
                count += 1
    finally:
        for hook in hooks:
            hook.remove()
    if count == 0:
        raise PlanError("shift_aware got no batches; give it at least one, or leave them out")
    return {
        name: (s[2] / s[0] - (s[1] / s[0]) ** 2).clamp(min=0).sqrt() for name, s in sums.items()
    }


def _add_moments_hook(name: str, sums: dict[str, Tensor]) -> Callable[[nn.Module, Any, Any], None]:
    def hook(layer: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not args:
            return  # called with keyword arguments only
        inputs = args[0].movedim(-1 if isinstance(layer, nn.Linear) else 1, 0).flatten(1).float()
        var, mean = torch.var_mean(inputs, 1, correction=0)
        number = torch.full_like(mean, inputs.shape[1])
        sums_now = torch.stack([number, number * mean, number * (var + mean.square())])
        sums[name] = sums.get(name, 0) + sums_now.double().cpu()

    return hook


def relu_moments(gamma: Tensor, beta: Tensor) -> Moments:
    """E and sd of max(0, β + γz): with t = β/|γ|, E = β·Φ(t) + |γ|·φ(t)."""
    scale = gamma.abs().clamp(min=1e-30)
    ratio = beta / scale
    inside = 0.5 * (1 + torch.erf(ratio / math.sqrt(2)))
    density = torch.exp(-ratio.square() / 2) / math.sqrt(2 * math.pi)
    mean = beta * inside + scale * density
    square = (beta.square() + scale.square()) * inside + beta * scale * density
    return Moments(mean, (square - mean.square()).clamp(min=0).sqrt())


def _quadrature(
    tensors: dict[str, Tensor], gamma: Tensor, beta: Tensor, steps: tuple[ElementwiseStep, ...]
) -> Moments:
    z = torch.linspace(-_RANGE, _RANGE, _NODES, dtype=gamma.dtype)
    weight = torch.exp(-z.square() / 2)
    weight = (weight / weight.sum())[:, None]
    value = (beta + gamma * z[:, None])[:, :, None, None]  # points × channels, as an image batch
    for step in steps:
        args = [
            tensors[a.name].detach().to(value) if isinstance(a, TensorName) else a
            for a in step.args
        ]
        value = step.function(value.clone(), *args, **step.kwargs)
    value = value[:, :, 0, 0]
    mean = (weight * value).sum(0)
    return Moments(mean, (weight * (value - mean).square()).sum(0).sqrt())


def _can_replay(label_index: LabelIndex, consumer: Consumer) -> bool:
    """Whether the steps can be applied to all channels at once.

    The slopes of a PReLU align with the channels if these are all channels of a BN, in order.
    """
    assert consumer.steps is not None
    if not any(isinstance(a, TensorName) for step in consumer.steps for a in step.args):
        return True
    block = label_index.block_at(int(consumer.source[0]))
    whole = block.start == int(consumer.source[0]) and block.size == consumer.source.numel()
    prelu = all(
        "prelu" in step.function.overloadpacket.__name__
        for step in consumer.steps
        if any(isinstance(a, TensorName) for a in step.args)
    )
    return whole and prelu and bool((consumer.source.diff() == 1).all())


def _scale_and_shift(
    tensors: dict[str, Tensor], label_index: LabelIndex, labels: Tensor
) -> tuple[Tensor, Tensor] | None:
    gamma = torch.zeros(labels.numel(), dtype=torch.double)
    beta = torch.zeros_like(gamma)
    left = torch.ones(labels.numel(), dtype=torch.bool)
    while bool(left.any()):
        block = label_index.block_at(int(labels[left][0]))
        here = (labels >= block.start) & (labels < block.start + block.size)
        left &= ~here
        place = labels[here] - block.start
        gamma[here] = tensors[block.tensor].detach().cpu().double()[place]
        shift = label_index.shifts.get(block.tensor)
        if shift is None:
            return None  # the shift is not a tensor of the model
        if shift:
            beta[here] = tensors[shift].detach().cpu().double()[place]
    return gamma, beta
