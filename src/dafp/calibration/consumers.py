"""The consumers of a network that can be read as matrices, and what they know of their inputs."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..graph.channel_graph import ChannelGraph
from ..graph.mean_target import mean_target
from ..network.named_tensors import tensors_of
from .linear_map import TRANSPOSED, LinearMap, why_not_linear


@dataclass(frozen=True)
class CalibratedConsumer:
    """A layer that consumes channels, as a matrix over patches."""

    weight: str  # name of its weight
    groups: int
    labels: Tensor  # of its inputs, groups × inputs of a group (× pixels after a flatten)
    outputs: Tensor  # labels of its outputs, one after the other; empty if they have none
    channels: Tensor | None  # see LinearMap
    mean_tensor: str  # bias, or running mean of the BN after it; "" if there is neither
    sign: float  # of a change of mean_tensor

    @property
    def module(self) -> str:
        return self.weight.rpartition(".")[0]

    def map(self, model: nn.Module) -> LinearMap:
        """The layer of a model (or of a copy of it) as a matrix over patches."""
        return LinearMap(model.get_submodule(self.module), self.channels)

    def alive(self, kept: Tensor) -> Tensor:
        """Which inputs of each group are kept: groups × inputs. `kept`: label -> is it kept."""
        flags = kept[self.labels.clamp(min=0)] | (self.labels < 0)
        return flags if flags.dim() == 2 else flags[..., 0]

    def wanted(self, kept: Tensor, shape: Sequence[int]) -> Tensor:
        """Which outputs of each group are kept: groups × outputs of a group."""
        if not self.outputs.numel():
            return torch.ones(*shape, dtype=torch.bool)
        return kept[self.outputs].view(*shape)

    @torch.no_grad()
    def write(
        self, model: nn.Module, original: nn.Module, matrices: list[Tensor], shifts: list[Tensor]
    ) -> None:
        """Write the weights of every group, and its old mean plus the shifts, into a model."""
        weight = tensors_of(model)[self.weight]
        weight.copy_(self.map(model).weight_of(torch.stack(matrices)).to(weight))
        if self.mean_tensor:
            mean, old = (tensors_of(m)[self.mean_tensor] for m in (model, original))
            mean.copy_(old + (self.sign * torch.cat(shifts)).to(old))


def calibrated_consumers(
    model: nn.Module, graph: ChannelGraph
) -> tuple[list[CalibratedConsumer], dict[str, str]]:
    """The consumers that can be read as matrices, in the order in which they run.

    Returns also weight -> reason, for those that cannot.
    """
    label_index = graph.label_index
    found: dict[str, CalibratedConsumer] = {}
    reasons: dict[str, str] = {}
    means: dict[str, set[str]] = {}  # weight -> tensors that could take its mean
    for consumer in label_index.consumers:
        name = consumer.weight
        target, sign = mean_target(label_index, consumer)
        means.setdefault(name, set()).add(target or "")
        if name in found or name in reasons:
            continue
        owner, _, attribute = name.rpartition(".")
        layer = model.get_submodule(owner)
        reason = why_not_linear(layer)
        if not reason and attribute != "weight":
            reason = f"its {attribute} is used as a weight"
        if reason:
            reasons[name] = reason
            continue
        transposed = isinstance(layer, TRANSPOSED)
        groups = 1 if isinstance(layer, nn.Linear) else int(layer.groups)  # type: ignore[arg-type]
        labels = label_index.labels(name, 0 if transposed else 1)
        assert labels is not None
        labels = labels.view(groups, -1) if transposed else labels.expand(groups, -1)
        channels = _channels(graph, labels[0]) if isinstance(layer, nn.Linear) else None
        outputs = label_index.labels(name, 1 if transposed else 0)
        found[name] = CalibratedConsumer(
            name,
            groups,
            labels if channels is None else labels[0][channels][None],
            torch.empty(0, dtype=torch.long)
            if outputs is None
            else outputs.repeat(groups if transposed else 1),
            channels,
            target or "",
            sign,
        )
    shared = _shared(means.values())
    return [
        c if len(means[c.weight]) == 1 and c.mean_tensor not in shared else _without_mean(c)
        for c in found.values()
    ], reasons


def _shared(means: Iterable[set[str]]) -> set[str]:
    """Tensors that would have to take the means of two different layers."""
    seen: set[str] = set()
    twice: set[str] = set()
    for tensors in means:
        twice |= seen & tensors
        seen |= tensors
    return twice


def _without_mean(consumer: CalibratedConsumer) -> CalibratedConsumer:
    return replace(consumer, mean_tensor="", sign=0.0)


def _channels(graph: ChannelGraph, labels: Tensor) -> Tensor | None:
    """The inputs of a linear layer after a flatten as channels × pixels; None without one."""
    label_index = graph.label_index
    group, channel = label_index.group_of[labels], label_index.channel_of[labels]
    if not labels.numel() or bool((group < 0).any()):
        return None
    key = group * (int(label_index.channel_of.max()) + 1) + channel
    _, inverse, counts = key.unique(return_inverse=True, return_counts=True)
    pixels = int(counts[0])
    if pixels == 1 or bool((counts != pixels).any()):
        return None
    channels: Tensor = inverse.argsort(stable=True).view(-1, pixels)
    return channels
