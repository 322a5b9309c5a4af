"""Criteria that need only the weights (`shift_aware` also accepts calibration data)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph, Group
from ..graph.trace_log import Consumer
from .activation_moments import activation_moments, measured_spread
from .channel_norms import cat, norm_along, scale_pairs, strengths
from .scores import Scores, finite_scores, sum_by_channel, tensors_of_traced

_EXACT = "donot_use_mm_for_euclid_dist"  # with mm, equal filters are not at distance 0


@torch.no_grad()
def dependency_aware(model: nn.Module, graph: ChannelGraph, *, norm: str = "frobenius") -> Scores:
    """Score channel c by S_c = |γ_c| · ‖W_c‖ (Eq. 5): its BN scale times its consumer weights.

    A channel is unimportant if its scale is almost zero, or if the weights of the next layer that
    multiply it are. With several consumers the score is the root of the sum of squares, each with
    the scale nearest to that consumer. Without a BN, the norm of the filter replaces |γ|.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`
        norm: "frobenius", or "mean_abs": the mean of |W|, as in the authors' code

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 1)
        ... )
        >>> model[1].weight.data = torch.tensor([0.1, 1.0, 2.0])
        >>> consumer = torch.tensor([[3.0, 3.0, 0.0], [4.0, 4.0, 0.0]])
        >>> model[3].weight.data = consumer[:, :, None, None]
        >>> graph = dafp.trace(model, torch.randn(1, 1, 8, 8))
        >>> dafp.criteria.dependency_aware(model, graph)
        {'0': tensor([0.5000, 5.0000, 0.0000])}
    """
    tensors = tensors_of_traced(model, graph)
    scale = strengths(tensors, graph.label_index)
    return _over_consumers(tensors, graph, lambda consumer: scale[consumer.source], norm)


@torch.no_grad()
def shift_aware(
    model: nn.Module, graph: ChannelGraph, batches: Iterable[Any] | None = None
) -> Scores:
    """Score channel c by s_c · ‖W_c‖: the error that remains after mean compensation.

    After a BN the pre-activation is about N(β, γ²); s_c is the standard deviation of the activation
    function's output. Where it is unknown, the scale replaces it, as in `dependency_aware`. Use it
    with `prune(..., compensate=True)`, which adds the mean of removed channels to their consumers.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`
        batches: calibration data (inputs, or (input, target) pairs) on which s_c is measured
            instead. This is better before `recalibrate`: channels that are seldom active vary more
            than a normal distribution predicts.

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 1)
        ... )
        >>> model[1].weight.data = torch.tensor([0.1, 1.0, 2.0])
        >>> consumer = torch.tensor([[3.0, 3.0, 0.0], [4.0, 4.0, 0.0]])
        >>> model[3].weight.data = consumer[:, :, None, None]
        >>> graph = dafp.trace(model, torch.randn(1, 1, 8, 8))
        >>> dafp.criteria.shift_aware(model, graph)
        {'0': tensor([0.2919, 2.9191, 0.0000])}
    """
    tensors = tensors_of_traced(model, graph)
    scale = strengths(tensors, graph.label_index)
    measured = {} if batches is None else measured_spread(model, graph.label_index, batches)

    def spread(consumer: Consumer) -> Tensor:
        std = measured.get(consumer.weight)
        if std is not None and std.numel() == consumer.source.numel():
            return std
        moments = activation_moments(tensors, graph.label_index, consumer)
        return scale[consumer.source] if moments is None else moments.std

    return _over_consumers(tensors, graph, spread, "frobenius")


@torch.no_grad()
def bn_scale(model: nn.Module, graph: ChannelGraph) -> Scores:
    """Score channel c by |γ_c|, as Network Slimming does.

    With several scales the score is the root of the sum of squares. Without a BN, the norm of the
    filter replaces |γ|.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 2, 1)
        ... )
        >>> model[1].weight.data = torch.tensor([0.1, 1.0, 2.0])
        >>> graph = dafp.trace(model, torch.randn(1, 1, 8, 8))
        >>> dafp.criteria.bn_scale(model, graph)
        {'0': tensor([0.1000, 1.0000, 2.0000])}
    """
    tensors = tensors_of_traced(model, graph)
    scale = strengths(tensors, graph.label_index)
    targets, sources = scale_pairs(graph.label_index, leaves=False)
    return sum_by_channel(graph, targets, scale[sources].square(), tensors)


@torch.no_grad()
def l1_norm(model: nn.Module, graph: ChannelGraph) -> Scores:
    """Score a filter by the sum of its absolute weights.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 3, (1, 2)), nn.ReLU(), nn.Conv2d(3, 2, 1))
        >>> filters = torch.tensor([[3.0, -4.0], [3.0, -4.0], [0.0, 1.0]])
        >>> model[0].weight.data = filters[:, None, None]
        >>> graph = dafp.trace(model, torch.randn(1, 1, 8, 8))
        >>> dafp.criteria.l1_norm(model, graph)
        {'0': tensor([7., 7., 1.])}
    """
    return _over_filters(model, graph, lambda rows: torch.linalg.vector_norm(rows, ord=1, dim=1))


@torch.no_grad()
def l2_norm(model: nn.Module, graph: ChannelGraph) -> Scores:
    """Score a filter by the Euclidean norm of its weights.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 3, (1, 2)), nn.ReLU(), nn.Conv2d(3, 2, 1))
        >>> filters = torch.tensor([[3.0, -4.0], [3.0, -4.0], [0.0, 1.0]])
        >>> model[0].weight.data = filters[:, None, None]
        >>> graph = dafp.trace(model, torch.randn(1, 1, 8, 8))
        >>> dafp.criteria.l2_norm(model, graph)
        {'0': tensor([5., 5., 1.])}
    """
    return _over_filters(model, graph, lambda rows: torch.linalg.vector_norm(rows, dim=1))


@torch.no_grad()
def geometric_median(model: nn.Module, graph: ChannelGraph) -> Scores:
    """Score a filter by the sum of its Euclidean distances to all filters of its layer (FPGM).

    A filter near the geometric median of its layer can be replaced by the others.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 3, (1, 2)), nn.ReLU(), nn.Conv2d(3, 2, 1))
        >>> filters = torch.tensor([[3.0, -4.0], [3.0, -4.0], [0.0, 1.0]])
        >>> model[0].weight.data = filters[:, None, None]
        >>> graph = dafp.trace(model, torch.randn(1, 1, 8, 8))
        >>> dafp.criteria.geometric_median(model, graph)
        {'0': tensor([ 5.8310,  5.8310, 11.6619])}
    """
    return _over_filters(
        model, graph, lambda rows: torch.cdist(rows, rows, compute_mode=_EXACT).sum(1)
    )


def random(model: nn.Module, graph: ChannelGraph, *, seed: int = 0) -> Scores:
    """Score by random numbers: the baseline for every other criterion.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`
        seed: seed of the random numbers

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 3, (1, 2)), nn.ReLU(), nn.Conv2d(3, 2, 1))
        >>> filters = torch.tensor([[3.0, -4.0], [3.0, -4.0], [0.0, 1.0]])
        >>> model[0].weight.data = filters[:, None, None]
        >>> graph = dafp.trace(model, torch.randn(1, 1, 8, 8))
        >>> dafp.criteria.random(model, graph, seed=0)
        {'0': tensor([0.4963, 0.7682, 0.0885])}
    """
    generator = torch.Generator().manual_seed(seed)
    return {g.name: torch.rand(g.size, generator=generator) for g in graph.groups}


def _over_consumers(
    tensors: dict[str, Tensor],
    graph: ChannelGraph,
    strength: Callable[[Consumer], Tensor],
    norm: str,
) -> Scores:
    if norm not in ("frobenius", "mean_abs"):
        raise PlanError(f"norm={norm!r} is not known; choose 'frobenius' or 'mean_abs'")
    targets, squares = [], []
    for consumer in graph.label_index.consumers:
        block = graph.label_index.block_at(int(consumer.target[0]))
        norms = norm_along(tensors[consumer.weight], block.dim, norm, consumer.groups)
        if consumer.groups == 1:
            norms = norms[consumer.target - block.start]
        targets.append(consumer.target)
        squares.append((strength(consumer) * norms).square().float())
    return sum_by_channel(graph, cat(targets), cat(squares), tensors)


def _over_filters(
    model: nn.Module, graph: ChannelGraph, score: Callable[[Tensor], Tensor]
) -> Scores:
    """Apply a formula to the producers of each channel (of a selection group: its consumers)."""
    tensors = tensors_of_traced(model, graph)
    scores = []
    for group in graph.groups:
        rows = [
            _rows(tensors[slot.param], slot.dim, slot.index, group)
            for slot in group.producers or group.consumers
        ]
        scores.append(score(torch.cat(rows, 1) if len(rows) > 1 else rows[0]))
    return finite_scores(graph, tensors, scores)


def _rows(weight: Tensor, dim: int, index: tuple[int, ...], group: Group) -> Tensor:
    """One row per channel, without a copy where the channels are the whole axis in order."""
    slices = weight.detach().float().cpu().movedim(dim, 0)
    if index != tuple(range(len(slices))):
        slices = slices[torch.tensor(index)]
    return slices.reshape(group.size, -1)
