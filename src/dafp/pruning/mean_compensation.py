"""Mean compensation: add the mean of removed channels to the bias of their consumers."""

import torch
from torch import Tensor, nn

from ..criteria.activation_moments import activation_moments
from ..graph.channel_graph import ChannelGraph
from ..graph.mean_target import mean_target
from ..graph.plan import PruningPlan
from ..network.named_tensors import tensors_of


@torch.no_grad()
def compensate_means(model: nn.Module, graph: ChannelGraph, plan: PruningPlan) -> None:
    """Add the mean contribution of removed channels to the bias of their consumers, in place.

    The mean of a channel follows from the scale and shift of its BN. A consumer without a bias is
    compensated in the running mean of the BN after it. Channels with an unknown mean, consumers
    with neither bias nor BN, and consumers that are used more than once are not compensated.
    """
    label_index, tensors = graph.label_index, tensors_of(model)
    alive = label_index.kept(graph.flags(plan))
    changes_of: dict[str, list[Tensor]] = {}  # compensated tensor -> one change per consumer
    for consumer in label_index.consumers:
        removed = ~alive[consumer.target]
        if label_index.block_at(int(consumer.target[0])).dim != 1:
            continue  # transposed: the contribution depends on the position in the image
        compensated, sign = mean_target(label_index, consumer)
        weight = tensors[consumer.weight]
        if compensated is None or tensors[compensated].numel() != weight.shape[0]:
            continue
        moments = (
            activation_moments(tensors, label_index, consumer) if bool(removed.any()) else None
        )
        mean = torch.zeros(removed.numel(), dtype=torch.double) if moments is None else moments.mean
        changes_of.setdefault(compensated, []).append(
            sign * _contribution(weight, consumer.groups, mean * removed)
        )
    for compensated, changes in changes_of.items():
        if len(changes) == 1:  # a layer that is used twice would need two different biases
            tensors[compensated].add_(changes[0].to(tensors[compensated]))


def _contribution(weight: Tensor, groups: int, mean: Tensor) -> Tensor:
    """Σ_c mean_c · Σ_kernel W[:, c]: one number per output channel."""
    kernel = weight.detach().double().cpu().flatten(1)
    kernel = kernel.view(*weight.shape[:2], -1).sum(2)
    if groups == 1:
        return kernel @ mean
    blocks = kernel.view(groups, -1, kernel.shape[1])
    return torch.einsum("goc,gc->go", blocks, mean.view(groups, -1)).flatten()
