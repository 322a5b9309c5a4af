"""The oracle of norms over channels: statistics over the channels that a plan keeps."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..network.channel_norms import ChannelNorm, normalise, weight_and_bias
from ..network.named_tensors import modules_of


class StatisticsOfKept:
    """Forward hook of a norm: its output, with statistics over the kept channels only."""

    def __init__(self, norm: ChannelNorm, kept: Tensor) -> None:
        self.norm = norm
        self.kept = kept  # positions

    def __call__(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Tensor
    ) -> Tensor:
        x = args[0] if args else next(v for v in kwargs.values() if isinstance(v, Tensor))
        return normalise(x, self.norm, *weight_and_bias(module), self.kept).to(output.dtype)


def mask_norms(model: nn.Module, graph: ChannelGraph, plan: PruningPlan) -> None:
    """Let the norms over channels of a masked model ignore the channels that the plan removes.

    An earlier plan no longer counts.
    """
    unmask_norms(model)
    for use in graph.label_index.norms:
        kept = _kept_positions(graph, plan, use.labels)
        if kept.numel() < use.labels.numel():
            norm = model.get_submodule(use.module)
            norm.register_forward_hook(StatisticsOfKept(use.norm, kept), with_kwargs=True)


def unmask_norms(model: nn.Module) -> None:
    """Undo `mask_norms`, in place."""
    for _, module in modules_of(model):
        for number, hook in list(module._forward_hooks.items()):
            if isinstance(hook, StatisticsOfKept):
                del module._forward_hooks[number]
                module._forward_hooks_with_kwargs.pop(number, None)


def _kept_positions(graph: ChannelGraph, plan: PruningPlan, labels: Tensor) -> Tensor:
    stays = torch.ones(labels.numel(), dtype=torch.bool)
    groups = graph.label_index.group_of[labels].masked_fill(labels < 0, -1)
    channels = graph.label_index.channel_of[labels]
    for number in groups.unique().tolist():
        if number >= 0:
            kept = torch.tensor(plan.keep[graph.groups[number].name], dtype=torch.long)
            stays[groups == number] = torch.isin(channels[groups == number], kept)
    return stays.nonzero().flatten()
