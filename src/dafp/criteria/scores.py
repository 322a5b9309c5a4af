"""The value that every criterion returns: group name -> one score per channel."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph, check_same_model
from ..network.named_tensors import tensors_of

Scores = dict[str, Tensor]
Criterion = Callable[[nn.Module, ChannelGraph], Scores]


def sum_by_channel(
    graph: ChannelGraph, targets: Tensor, values: Tensor, tensors: dict[str, Tensor]
) -> Scores:
    """Score of a channel: the square root of the sum of the values whose labels belong to it."""
    offsets = torch.tensor([0, *[g.size for g in graph.groups]]).cumsum(0)
    flat = torch.zeros(int(offsets[-1]), dtype=torch.float32)
    group = graph.label_index.group_of[targets]
    mine = group >= 0
    place = offsets[group[mine]] + graph.label_index.channel_of[targets[mine]]
    flat.index_add_(0, place, values[mine].float())
    scores = list(flat.sqrt().split([g.size for g in graph.groups]))
    return finite_scores(graph, tensors, scores)


def finite_scores(graph: ChannelGraph, tensors: dict[str, Tensor], scores: list[Tensor]) -> Scores:
    """Scores by group name; raise if one is not finite, and name the tensor that is not."""
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


def tensors_of_traced(model: nn.Module, graph: ChannelGraph) -> dict[str, Tensor]:
    """The model's tensors by name; raise unless the graph belongs to this model."""
    check_same_model(model, graph)
    return tensors_of(model)
