"""Criteria that need nothing but the weights (`shift_aware` can also measure)."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph, Group, check_same_model
from ..graph.label_index import Structure
from ..graph.trace_log import Read
from ..network.named_tensors import tensors_of
from .activation_moments import activation_moments, measured_spread
from .scores import Scores, finite_scores, sum_by_channel

_EXACT = "donot_use_mm_for_euclid_dist"  # the other way, equal filters are not at distance 0


@torch.no_grad()
def dependency_aware(model: nn.Module, graph: ChannelGraph, *, norm: str = "frobenius") -> Scores:
    """Score channel c by |γ_c| · ‖W_c‖: its scale, times the weights that read it.

    A channel is unimportant if it is scaled to almost nothing, or if nobody listens. Several
    readers: root of the sum of squares, each with the scale nearest to it. Without a BN in front,
    the norm of the producing filter stands for |γ|. `norm="mean_abs"` takes the mean of |W|.
    """
    tensors = tensors_of_traced(model, graph)
    scale = _strengths(tensors, graph.structure)
    return _over_readers(tensors, graph, lambda read: scale[read.source], norm)


@torch.no_grad()
def shift_aware(
    model: nn.Module, graph: ChannelGraph, batches: Iterable[Any] | None = None
) -> Scores:
    """Score channel c by s_c · ‖W_c‖: what is lost if its mean is given back to the reader.

    Behind a BN the pre-activation is about N(β, γ²); s_c is the standard deviation of what the
    activation makes of it. Where that is unknown, the scale stands for it, as in dependency_aware.
    With `batches` (inputs, or (input, target) pairs) s_c is measured on them: better before
    `recalibrate`, as channels that are seldom active vary more than a normal distribution says.
    """
    tensors = tensors_of_traced(model, graph)
    scale = _strengths(tensors, graph.structure)
    measured = {} if batches is None else measured_spread(model, graph.structure, batches)

    def spread(read: Read) -> Tensor:
        heard = measured.get(read.weight)
        if heard is not None and heard.numel() == read.source.numel():
            return heard
        moments = activation_moments(tensors, graph.structure, read)
        return scale[read.source] if moments is None else moments.std

    return _over_readers(tensors, graph, spread, "frobenius")


@torch.no_grad()
def bn_scale(model: nn.Module, graph: ChannelGraph) -> Scores:
    """Score channel c by |γ_c|, as Network Slimming does; several scales: root of the squares."""
    tensors = tensors_of_traced(model, graph)
    scale = _strengths(tensors, graph.structure)
    targets, sources = scale_pairs(graph.structure, leaves=False)
    return sum_by_channel(graph, targets, scale[sources].square(), tensors=tensors)


@torch.no_grad()
def l1_norm(model: nn.Module, graph: ChannelGraph) -> Scores:
    """Score a filter by the sum of its absolute weights."""
    return _over_filters(model, graph, lambda rows: torch.linalg.vector_norm(rows, ord=1, dim=1))


@torch.no_grad()
def l2_norm(model: nn.Module, graph: ChannelGraph) -> Scores:
    """Score a filter by the Euclidean norm of its weights."""
    return _over_filters(model, graph, lambda rows: torch.linalg.vector_norm(rows, dim=1))


@torch.no_grad()
def geometric_median(model: nn.Module, graph: ChannelGraph) -> Scores:
    """Score a filter by the sum of its distances to all filters of its layer."""
    return _over_filters(
        model, graph, lambda rows: torch.cdist(rows, rows, compute_mode=_EXACT).sum(1)
    )


def random(model: nn.Module, graph: ChannelGraph, *, seed: int = 0) -> Scores:
    """Score by chance: the baseline that every criterion has to beat."""
    generator = torch.Generator().manual_seed(seed)
    return {g.name: torch.rand(g.size, generator=generator) for g in graph.groups}


def tensors_of_traced(model: nn.Module, graph: ChannelGraph) -> dict[str, Tensor]:
    check_same_model(model, graph)
    return tensors_of(model)


# ---- scales and the weights that read them -------------------------------------------------------


def _strengths(tensors: dict[str, Tensor], structure: Structure) -> Tensor:
    """label -> |γ|, or the norm of the producing filter; a sum has the root of both squares."""
    strength = torch.ones(structure.group_of.numel(), dtype=torch.float32)
    for block in structure.blocks:
        labels = slice(block.start, block.start + block.size)
        if not block.tensor:
            a, b = (strength[s.clamp(min=0)] * (s >= 0) for s in structure.sums[block.start])
            strength[labels] = torch.hypot(a, b)
        elif structure.roles["scale"][block.start] or bool(
            structure.roles["producer"][labels].any()
        ):
            strength[labels] = _norm_along(tensors[block.tensor], block.dim, "frobenius")
    return strength


def _norm_along(weight: Tensor, dim: int, norm: str, groups: int = 1) -> Tensor:
    """The norm of every slice along one axis; with groups, of every (group, slice)."""
    weight = weight.detach().float().cpu()
    if groups > 1:
        weight = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
        weight, dim = weight.transpose(1, 2).flatten(0, 1), 0
    others = [d for d in range(weight.dim()) if d != dim]
    if not others:
        return weight.abs()
    if norm == "mean_abs":
        return weight.abs().mean(others)
    length: Tensor = torch.linalg.vector_norm(weight, dim=others)
    return length


def _over_readers(
    tensors: dict[str, Tensor], graph: ChannelGraph, strength: Callable[[Read], Tensor], norm: str
) -> Scores:
    if norm not in ("frobenius", "mean_abs"):
        raise PlanError(f"norm={norm!r} is not known; choose 'frobenius' or 'mean_abs'")
    targets, squares = [], []
    for read in graph.structure.reads:
        block = graph.structure.block_at(int(read.target[0]))
        heard = _norm_along(tensors[read.weight], block.dim, norm, read.groups)
        if read.groups == 1:
            heard = heard[read.target - block.start]
        targets.append(read.target)
        squares.append((strength(read) * heard).square().float())
    return sum_by_channel(graph, _cat(targets), _cat(squares), tensors=tensors)


def scale_pairs(structure: Structure, *, leaves: bool) -> tuple[Tensor, Tensor]:
    """(channel's label, label of a scale that a reader hears it through), each pair once."""
    target = _cat([r.target for r in structure.reads])
    source = _cat([r.source for r in structure.reads])
    parts = [torch.stack([target, source])]
    while leaves and parts[-1].numel():
        target, source = parts[-1]
        is_sum = torch.zeros_like(source, dtype=torch.bool)
        below = []
        for start, operands in structure.sums.items():
            here = (source >= start) & (source < start + operands[0].numel())
            is_sum |= here
            for side in operands:
                below.append(torch.stack([target[here], side[source[here] - start]]))
        parts[-1] = parts[-1][:, ~is_sum]
        parts.append(
            torch.cat(below, 1).unique(dim=1) if below else torch.empty(2, 0, dtype=torch.long)
        )
    pairs = torch.cat(parts, 1)
    pairs = pairs[:, pairs.min(0).values >= 0]
    # several readers of one channel that hear it through the same scale count once
    channel = (
        structure.group_of[pairs[0]] * (structure.group_of.numel() + 1)
        + structure.channel_of[pairs[0]]
    )
    _, first = torch.stack([channel, pairs[1]]).unique(dim=1, return_inverse=True)
    keep = torch.full((int(first.max()) + 1 if first.numel() else 0,), pairs.shape[1])
    keep.scatter_reduce_(0, first, torch.arange(pairs.shape[1]), "amin")
    return pairs[0, keep], pairs[1, keep]


def _over_filters(
    model: nn.Module, graph: ChannelGraph, score: Callable[[Tensor], Tensor]
) -> Scores:
    """Apply a formula to the filters that make each channel (for a selection: that read it)."""
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


def _cat(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)
