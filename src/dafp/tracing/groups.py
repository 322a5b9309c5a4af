"""From ties to groups: decides which channels are removed together, and which are kept.

Labels that are tied, directly or through others, form a class (union_find.py): one channel and all
its entries in tensors. Classes that touch the same tensor axes form a group. A class is kept if an
operator needs it (`KeepReason` in graph/trace_log.py), if it has no consumer, if it belongs to a
residual stream (residual_streams.py), or if the user asked for it.
"""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..errors import TraceError
from ..graph.channel_graph import Group, Kept
from ..graph.label_index import EvenSplit, LabelIndex, WidthAttribute
from ..graph.trace_log import Consumer, Location, Tie, TraceLog
from .reasons import Reasons
from .residual_streams import (
    TracedModel,
    add_selections,
    distinct_consumers,
    find_streams,
    mark,
    selectable,
)
from .slots import block_of, describe_groups, kept_channels
from .union_find import components

_NO_CONSUMER = (Location("forward", ""), "it has no consumer in this forward pass")


@dataclass(frozen=True)
class Grouping:
    """The result of `group_channels`: groups, kept channels, and their labels."""

    groups: tuple[Group, ...]
    kept: tuple[Kept, ...]
    label_index: LabelIndex
    roots: Tensor  # label -> class


@dataclass(frozen=True)
class _Classes:
    """Classes of labels that are tied, directly or through others.

    `selections` are the consumers that are not tied to the residual stream that they consume;
    `streams` are the residual streams that are kept.
    """

    roots: Tensor  # label -> class
    ties: tuple[Tie, ...]
    selections: list[Consumer]
    streams: dict[int, Location] = field(default_factory=dict)  # label -> its addition


def group_channels(
    log: TraceLog,
    model_info: TracedModel,
    *,
    residual: str,
    keep: Sequence[str],
    width_attributes: tuple[WidthAttribute, ...],
    even_splits: tuple[EvenSplit, ...],
    whole_norms: frozenset[str] = frozenset(),
) -> Grouping:
    """Compute the classes of tied labels, decide which are kept, and form groups of the others."""
    roles = _role_masks(log)
    classes = _solve_ties(log)
    if residual == "keep":
        classes = _detach_selections(log, model_info, roles, keep, classes)
    roots = classes.roots

    reasons = _keep_reasons(log, classes, _labels_named_by(keep, log, roles))
    for use in log.norms if residual == "keep" else ():
        known = use.labels[use.labels >= 0]
        reasons.add(roots[known], Location("norm", use.module), "normalises over the channels")
    reasons.add(_classes_without_consumer(roots, roles), *_NO_CONSUMER)
    complete = _complete_classes(roots, roles)
    reasons = _propagate_even_splits(even_splits, roots, complete, reasons)
    prunable = _prunable_labels(roots, complete, reasons)

    group_of, channel_of, groups = _partition(log, roots, prunable, roles)
    label_index = LabelIndex(
        blocks=tuple(log.blocks),
        shapes=model_info.shapes,
        parameters=model_info.parameters,
        group_of=group_of,
        channel_of=channel_of,
        consumers=tuple(distinct_consumers(log)),
        sums=dict(log.sums),
        roles=roles,
        macs=tuple(log.macs),
        batch=model_info.batch,
        shifts=dict(log.shifts),
        indices=tuple(log.indices),
        width_attributes=width_attributes,
        even_splits=even_splits,
        ties=classes.ties,
        norms=tuple(log.norms),
    )
    label_index, groups = add_selections(
        label_index, log, model_info, groups, classes.selections, whole_norms
    )
    kept = kept_channels(log, roots, prunable, roles, reasons)
    return Grouping(tuple(groups), tuple(kept), label_index, roots)


def _role_masks(log: TraceLog) -> dict[str, Tensor]:
    """role -> label -> whether it has this role."""
    masks = {
        name: torch.zeros(log.total, dtype=torch.bool)
        for name in (*log.roles, "producer", "consumer", "scale")
    }
    for name, labels in log.roles.items():
        masks[name][torch.cat(labels)] = True
    return masks


# ---- classes of tied labels ----------------------------------------------------------------------


def _solve_ties(log: TraceLog, selections: Sequence[Consumer] = ()) -> _Classes:
    """Compute the classes, without the ties of these selections to the channels they consume."""
    selected = {mark(consumer.source, consumer.target) for consumer in selections}
    ties = tuple(log.ties)
    if selected:
        ties = tuple(t for t in ties if t.kind != "consume" or mark(t.a, t.b) not in selected)
    return _Classes(components(log.total, ties), ties, list(selections))


def _detach_selections(
    log: TraceLog,
    model_info: TracedModel,
    roles: dict[str, Tensor],
    keep: Sequence[str],
    classes: _Classes,
) -> _Classes:
    """Find the residual streams, and compute the classes without the ties of selections to them."""
    streams = find_streams(log, classes.roots)
    candidates = [
        consumer
        for consumer in selectable(log, model_info, roles, streams, classes.roots)
        if not any(_names_selection(pattern, log, model_info, consumer) for pattern in keep)
    ]
    detached = _solve_ties(log, candidates)
    # weights that are tied to other channels too cannot select
    alone = torch.bincount(detached.roots, minlength=log.total) == 1
    selections = [c for c in candidates if bool(alone[detached.roots[c.target]].all())]
    if len(selections) < len(candidates):
        detached = _solve_ties(log, selections)
    return replace(detached, streams=streams)


def _names_selection(
    pattern: str, log: TraceLog, model_info: TracedModel, consumer: Consumer
) -> bool:
    """Does a pattern of keep= name this selection: its BN, its layer, or both as "bn>layer"?"""
    norm = log.block_at(int(consumer.source[0])).tensor.rpartition(".")[0]
    layer = model_info.layers[consumer.weight]
    return any(_matches(pattern, name) for name in (norm, layer, f"{norm}>{layer}"))


def _matches(pattern: str, module: str) -> bool:
    within = module == pattern or module.startswith(f"{pattern}.")
    return within or fnmatch.fnmatch(module, pattern)


# ---- which classes are kept, and why -------------------------------------------------------------


def _keep_reasons(log: TraceLog, classes: _Classes, named: dict[int, str]) -> Reasons:
    """Why classes are kept: an operator, a residual stream, or keep= (label -> pattern)."""
    roots = classes.roots
    reasons = Reasons(log.total)
    for keep in log.keep_reasons:
        reasons.add(roots[keep.labels], keep.where, keep.reason)
    why = "residual stream; residual='couple' prunes it jointly"
    for label, where in classes.streams.items():
        reasons.add(roots[[label]], where, why)
    for label, pattern in named.items():
        reasons.set(roots[[label]], Location("keep", ""), f"asked for by keep={pattern!r}")
    return reasons


def _classes_without_consumer(roots: Tensor, roles: dict[str, Tensor]) -> Tensor:
    """Classes that are produced, but not consumed."""
    consumed = _any_in_class(roots, roles["consumer"])
    unconsumed: Tensor = roots[roles["producer"] & ~consumed].unique()
    return unconsumed


def _complete_classes(roots: Tensor, roles: dict[str, Tensor]) -> Tensor:
    """label -> whether its class has a producer and a consumer."""
    return _any_in_class(roots, roles["producer"]) & _any_in_class(roots, roles["consumer"])


def _any_in_class(roots: Tensor, mask: Tensor) -> Tensor:
    """label -> whether the mask is true for any label of its class."""
    hit = torch.zeros_like(mask)
    hit[roots[mask]] = True
    return hit[roots]


def _propagate_even_splits(
    even_splits: Sequence[EvenSplit], roots: Tensor, complete: Tensor, reasons: Reasons
) -> Reasons:
    """Add reasons for even splits: if one part is kept whole, all parts are."""
    reasons = reasons.copy()
    for even_split in even_splits:
        prunable = _prunable_labels(roots, complete, reasons)
        if all(bool(prunable[part].any()) for part in even_split.parts):
            continue
        where = Location(even_split.op, even_split.module)
        tied = roots[torch.cat(even_split.parts)]
        reasons.add(tied, where, "must be as wide as channels that are kept")
    return reasons


def _prunable_labels(roots: Tensor, complete: Tensor, reasons: Reasons) -> Tensor:
    """label -> whether its class has a producer, a consumer, and no reason to be kept."""
    return complete & ~reasons.kept[roots]


def _labels_named_by(
    keep: Sequence[str], log: TraceLog, roles: dict[str, Tensor]
) -> dict[int, str]:
    """label of a producer or scale -> the pattern of keep= that names it."""
    named: dict[int, str] = {}
    for pattern in keep:
        base, _, part = pattern.partition("~")[0].partition(">")[0].partition("[")
        hit = False
        for block in log.blocks:
            if not block.tensor or not _matches(base, block.tensor.rpartition(".")[0]):
                continue
            labels = torch.arange(block.start, block.start + block.size)
            labels = labels[roles["producer"][labels] | roles["scale"][labels]]
            if part:
                labels = torch.cat([labels[a:b] for a, b in _parse_ranges(pattern, part)])
            hit = hit or labels.numel() > 0
            if bool(roles["producer"][labels].any()) or ">" not in pattern:
                named |= dict.fromkeys(labels.tolist(), pattern)
        if not hit:
            names = sorted({b.tensor.rpartition(".")[0] for b in log.blocks if b.tensor})
            raise TraceError(
                f"keep={pattern!r} matches no layer that produces channels; layers are "
                f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
            )
    return named


def _parse_ranges(pattern: str, text: str) -> list[tuple[int, int]]:
    """Parse "0:4,8:12]" into pairs of numbers."""
    found = []
    for part in text.rstrip("]").split(","):
        start, _, end = part.partition(":")
        if not (start.isdigit() and end.isdigit()):
            raise TraceError(f"keep={pattern!r}: write a part of a layer as name[a:b]")
        found.append((int(start), int(end)))
    return found


# ---- groups of the other classes -----------------------------------------------------------------


def _partition(
    log: TraceLog, roots: Tensor, prunable: Tensor, roles: dict[str, Tensor]
) -> tuple[Tensor, Tensor, list[Group]]:
    """Form one group of all classes that touch the same tensor axes equally often.

    Returns label -> group, label -> channel, and the groups.
    """
    lists = _groups_of_classes(log, roots, prunable, roles["producer"])
    sizes = [len(group_roots) for group_roots in lists]
    group_of = torch.full((log.total,), -1)
    channel_of = torch.zeros(log.total, dtype=torch.long)
    if sizes:
        index = torch.tensor([root for group_roots in lists for root in group_roots])
        group_of[index] = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        channel_of[index] = torch.cat([torch.arange(size) for size in sizes])
    group_of = group_of[roots].masked_fill_(~prunable, -1)
    channel_of = channel_of[roots].masked_fill_(group_of < 0, 0)
    groups = describe_groups(log, group_of, channel_of, roles, sizes)
    return group_of, channel_of, groups


def _groups_of_classes(
    log: TraceLog, roots: Tensor, prunable: Tensor, producer: Tensor
) -> list[list[int]]:
    """The classes of each group, in the order of their first producers."""
    blocks = block_of(log)
    named = torch.tensor([bool(b.tensor) for b in log.blocks] or [True])
    members = (prunable & named[blocks]).nonzero().flatten()
    # a multiset hash of the axes a class touches: equal for the classes of one group
    code = (torch.arange(len(log.blocks)) + 1) * 0x9E3779B97F4A7C1
    code = (code ^ (code >> 29)) * 0x3F58476D1CE4E5B9
    code = code ^ (code >> 32)
    signature = torch.zeros(log.total, dtype=torch.long)
    signature.index_add_(0, roots[members], code[blocks[members]])
    made = members[producer[members]]
    classes = roots[made].unique()
    first = torch.full((log.total,), log.total)  # class -> its first producer
    first.scatter_reduce_(0, roots[made], made, "amin")
    classes = classes[first[classes].argsort()]
    lists: dict[int, list[int]] = {}
    for root, sign in zip(classes.tolist(), signature[classes].tolist(), strict=True):
        lists.setdefault(sign, []).append(root)
    return list(lists.values())
