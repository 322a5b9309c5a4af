"""What every criterion returns: a score per channel, for every group."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph

Scores = dict[str, Tensor]
Criterion = Callable[[nn.Module, ChannelGraph], Scores]


def sum_by_channel(
    graph: ChannelGraph, targets: Tensor, values: Tensor,
    tensors: dict[str, Tensor] | None = None,
) -> Scores:  # fmt: skip
    """Sum values by the channel that their label belongs to."""
    offsets = torch.tensor([0, *[g.size for g in graph.groups]]).cumsum(0)
    flat = torch.zeros(int(offsets[-1]), dtype=torch.float32)
    group = graph.structure.group_of[targets]
    mine = group >= 0
    place = offsets[group[mine]] + graph.structure.channel_of[targets[mine]]
    flat.index_add_(0, place, values[mine].float())
    scores = list(flat.sqrt().split([g.size for g in graph.groups]))
    return finite_scores(graph, tensors or {}, scores)


def finite_scores(graph: ChannelGraph, tensors: dict[str, Tensor], scores: list[Tensor]) -> Scores:
    for group, score in zip(graph.groups, scores, strict=True):
        if not bool(score.isfinite().all()):
            slots = (*group.producers, *group.scales, *group.consumers)
            bad = [
                s.param
                for s in slots
                if s.param in tensors and not bool(tensors[s.param].isfinite().all())
            ]
            raise PlanError(
                f"scores of {group.name!r} are not finite"
                + (f": {bad[0]} holds NaN or infinity" if bad else "")
                + "; the model must have finite weights before it can be pruned"
            )
    return {g.name: s for g, s in zip(graph.groups, scores, strict=True)}
