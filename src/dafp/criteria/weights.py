"""How much each channel matters: one function per criterion, all of the same shape.

A criterion takes (model, graph) and returns, for every group, a score per channel: the higher, the
more important. Any function of that shape is a criterion.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph, Group
from ..graph.label_index import Structure
from ..graph.trace_log import Read
from ..network.calling import FORWARD_ERRORS, batches_of, call_model, describe, evaluated
from ..network.fingerprint import check_same_model
from ..network.model_copy import tensors_of
from .activation_moments import activation_moments, measured_spread

Scores = dict[str, Tensor]
_EXACT = "donot_use_mm_for_euclid_dist"  # the other way, equal filters are not at distance 0
Criterion = Callable[[nn.Module, ChannelGraph], Scores]


@torch.no_grad()
def dependency_aware(model: nn.Module, graph: ChannelGraph, *, norm: str = "frobenius") -> Scores:
    """Score channel c by |γ_c| · ‖W_c‖: its scale, times the weights that read it.

    A channel is unimportant if it is scaled to almost nothing, or if nobody listens. Several
    readers: root of the sum of squares, each with the scale nearest to it. Without a BN in front,
    the norm of the producing filter stands for |γ|. `norm="mean_abs"` takes the mean of |W|.
    """
    tensors = _tensors(model, graph)
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
    tensors = _tensors(model, graph)
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
    tensors = _tensors(model, graph)
    scale = _strengths(tensors, graph.structure)
    targets, sources = _scale_pairs(graph.structure, leaves=False)
    return _gather(graph, targets, scale[sources].square(), tensors=tensors)


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


def taylor(
    model: nn.Module,
    graph: ChannelGraph,
    batches: Iterable[tuple[Any, Tensor]],
    *,
    loss: Callable[[Any, Tensor], Tensor] = nn.functional.cross_entropy,
) -> Scores:
    """Score by the mean over batches of (z · ∂L/∂z)² for a gate z = 1 behind each scale.

    Behind a BN z·∂L/∂z = γ·∂L/∂γ + β·∂L/∂β, so the gradients of the weights are all it takes. The
    model is evaluated in eval mode; its weights and gradients are left as they were.
    """
    tensors = _tensors(model, graph)
    targets, sources = _scale_pairs(graph.structure, leaves=True)
    pairs = torch.stack(
        [graph.structure.group_of[targets], graph.structure.channel_of[targets], sources]
    )
    group, channel, leaf = pairs.unique(dim=1)
    parameters = {n: t for n, t in tensors.items() if isinstance(t, nn.Parameter)}
    total: list[Tensor] = [torch.zeros(g.size, dtype=torch.float32) for g in graph.groups]
    count = 0
    wanted = [p for p in parameters.values() if p.requires_grad]
    if not wanted:
        raise PlanError("taylor needs gradients, but no parameter of the model requires one")
    with evaluated(model), torch.enable_grad():
        for batch in batches_of(batches, "taylor"):
            value = _loss(model, batch, loss)
            grads = torch.autograd.grad(value, wanted, allow_unused=True)
            by_id = {id(p): g for p, g in zip(wanted, grads, strict=True)}
            gates = _gates(graph.structure, parameters, by_id)
            for number, sums in enumerate(total):
                mine = group == number
                change = torch.zeros_like(sums).index_add_(0, channel[mine], gates[leaf[mine]])
                sums.add_(change.square())
            count += 1
    if count == 0:
        raise PlanError("taylor got no batches; give it at least one (input, target) pair")
    return _checked(graph, tensors, [sums / count for sums in total])


def _loss(model: nn.Module, batch: Any, loss: Callable[[Any, Tensor], Tensor]) -> Tensor:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise PlanError(f"taylor takes (input, target) pairs; this batch is {describe(batch)}")
    x, y = batch
    try:
        return loss(call_model(model, x), y)
    except FORWARD_ERRORS as error:
        raise PlanError(
            f"model or loss do not run on a batch ({describe(x)}; target {describe(y)}): "
            f"{type(error).__name__}: {error}"
        ) from error


def _gates(
    structure: Structure, parameters: Mapping[str, Tensor], grads: Mapping[int, Tensor | None]
) -> Tensor:
    """label -> z·∂L/∂z at the scale, or at the filter where there is no scale."""
    gates = torch.zeros(structure.group_of.numel(), dtype=torch.float32)
    for block in structure.blocks:
        weight = parameters.get(block.tensor)
        labels = slice(block.start, block.start + block.size)
        known = structure.roles["scale"][labels] | structure.roles["producer"][labels]
        if weight is None or not bool(known.any()):
            continue
        both = [weight]
        shift = parameters.get(structure.shifts.get(block.tensor, ""))
        if shift is not None and shift.shape[:1] == weight.shape[block.dim : block.dim + 1]:
            both.append(shift)
        for tensor in both:
            grad = grads.get(id(tensor))
            if grad is not None:
                change = (tensor.detach() * grad).float().cpu()
                dims = [d for d in range(change.dim()) if d != block.dim and change.dim() > 1]
                gates[labels] += change.sum(dims) if dims else change
    return gates


def _tensors(model: nn.Module, graph: ChannelGraph) -> dict[str, Tensor]:
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
    return _gather(graph, _cat(targets), _cat(squares), tensors=tensors)


def _scale_pairs(structure: Structure, *, leaves: bool) -> tuple[Tensor, Tensor]:
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


def _gather(
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
    return _checked(graph, tensors or {}, scores)


def _over_filters(
    model: nn.Module, graph: ChannelGraph, score: Callable[[Tensor], Tensor]
) -> Scores:
    """Apply a formula to the filters that make each channel (for a selection: that read it)."""
    tensors = _tensors(model, graph)
    scores = []
    for group in graph.groups:
        rows = [
            _rows(tensors[slot.param], slot.dim, slot.index, group)
            for slot in group.producers or group.consumers
        ]
        scores.append(score(torch.cat(rows, 1) if len(rows) > 1 else rows[0]))
    return _checked(graph, tensors, scores)


def _rows(weight: Tensor, dim: int, index: tuple[int, ...], group: Group) -> Tensor:
    """One row per channel, without a copy where the channels are the whole axis in order."""
    slices = weight.detach().float().cpu().movedim(dim, 0)
    if index != tuple(range(len(slices))):
        slices = slices[torch.tensor(index)]
    return slices.reshape(group.size, -1)


def _checked(graph: ChannelGraph, tensors: dict[str, Tensor], scores: list[Tensor]) -> Scores:
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


def _cat(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)
