"""From ties to groups: decides which channels go together, and which are kept.

Labels that are tied, directly or through others, form a class (union_find.py): one channel and all
its entries in tensors. Classes that touch the same tensor axes form a group. A class is kept if an
operator asked for it (the reasons of graph/trace_log.py), if it belongs to a residual stream
(residual_streams.py), or if the user asked for it.
"""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import TraceError
from ..graph.channel_graph import Group, Kept
from ..graph.label_index import EvenSplit, LabelIndex, WidthAttribute
from ..graph.trace_log import Consumer, Location, TraceLog
from .residual_streams import (
    ModelInfo,
    add_selections,
    distinct_consumers,
    find_streams,
    mark,
    selectable,
)
from .slots import block_of, describe_groups, kept_channels
from .union_find import components


@dataclass(frozen=True)
class Grouping:
    """The result: groups, kept channels, and the labels behind them."""

    groups: tuple[Group, ...]
    kept: tuple[Kept, ...]
    label_index: LabelIndex
    roots: Tensor  # label -> class


def group_channels(
    log: TraceLog,
    model_info: ModelInfo,
    *,
    residual: str,
    keep: Sequence[str],
    width_attributes: tuple[WidthAttribute, ...],
    even_splits: tuple[EvenSplit, ...],
) -> Grouping:
    """Compute the classes of tied labels, decide which are kept, and form groups of the others."""
    roles = {name: _mask(log, labels) for name, labels in log.roles.items()}
    for name in ("producer", "consumer", "scale"):
        roles.setdefault(name, torch.zeros(log.total, dtype=torch.bool))
    ties, selected = list(log.ties), []
    roots = components(log.total, ties)
    streams = find_streams(log, roots)
    if residual == "keep":
        selected = [
            consumer
            for consumer in selectable(log, model_info, roles, streams, roots)
            if not any(_names_selection(p, log, model_info, consumer) for p in keep)
        ]
        chosen = {mark(consumer.source, consumer.target) for consumer in selected}
        ties = [tie for tie in ties if tie.kind != "consume" or mark(tie.a, tie.b) not in chosen]
        roots = components(log.total, ties)
        alone = torch.bincount(roots, minlength=log.total) == 1
        tied = [consumer for consumer in selected if not bool(alone[roots[consumer.target]].all())]
        if tied:  # weights that are tied to other channels too cannot select
            chosen -= {mark(consumer.source, consumer.target) for consumer in tied}
            selected = [r for r in selected if mark(r.source, r.target) in chosen]
            ties = [t for t in log.ties if t.kind != "consume" or mark(t.a, t.b) not in chosen]
            roots = components(log.total, ties)
    reasons = _reasons(log, roots, streams, residual, _asked(log, roles, keep))
    free = torch.ones(log.total, dtype=torch.bool)
    for root in reasons:
        free[root] = False
    consumed = _any_in_class(roots, roles["consumer"]) & _any_in_class(roots, roles["producer"])
    unconsumed = _any_in_class(roots, roles["producer"]) & ~_any_in_class(roots, roles["consumer"])
    unused = roots[unconsumed & roles["producer"]].unique().tolist()
    forward = Location("forward", "")
    reasons |= {
        r: (forward, "it has no consumer in this forward pass") for r in unused if r not in reasons
    }
    inside = free[roots] & consumed
    for even_split in even_splits:  # if one part is kept whole, so are the parts of equal width
        if any(not bool(inside[part].any()) for part in even_split.parts):
            labels = torch.cat(even_split.parts)
            why = (
                Location(even_split.op, even_split.module),
                "must be as wide as channels that are kept",
            )
            for root in roots[labels].unique().tolist():
                reasons.setdefault(root, why)
                free[root] = False
            inside = free[roots] & consumed
    group_of, channel_of, groups = _partition(log, roots, inside, roles)
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
        ties=tuple(ties),
    )
    label_index, groups = add_selections(label_index, log, model_info, groups, selected)
    kept = kept_channels(log, roots, inside, roles, reasons)
    return Grouping(tuple(groups), tuple(kept), label_index, roots)


def _mask(log: TraceLog, labels: list[Tensor]) -> Tensor:
    mask = torch.zeros(log.total, dtype=torch.bool)
    mask[torch.cat(labels)] = True
    return mask


def _any_in_class(roots: Tensor, mask: Tensor) -> Tensor:
    """label -> is the mask true for any label of its class."""
    hit = torch.zeros_like(mask)
    hit[roots[mask]] = True
    return hit[roots]


def _names_selection(
    pattern: str, log: TraceLog, model_info: ModelInfo, consumer: Consumer
) -> bool:
    norm = log.block_at(int(consumer.source[0])).tensor.rpartition(".")[0]
    layer = model_info.layers[consumer.weight]
    return any(_matches(pattern, name) for name in (norm, layer, f"{norm}>{layer}"))


def _matches(pattern: str, module: str) -> bool:
    inside = module == pattern or module.startswith(f"{pattern}.")
    return inside or fnmatch.fnmatch(module, pattern)


def _asked(log: TraceLog, roles: dict[str, Tensor], keep: Sequence[str]) -> dict[int, str]:
    """Labels of the producers and scales that keep= names -> the pattern."""
    asked: dict[int, str] = {}
    for pattern in keep:
        base, _, part = pattern.partition("~")[0].partition(">")[0].partition("[")
        hit = False
        for block in log.blocks:
            if not block.tensor or not _matches(base, block.tensor.rpartition(".")[0]):
                continue
            labels = torch.arange(block.start, block.start + block.size)
            known = roles["producer"][labels] | roles["scale"][labels]
            labels = labels[known]
            if part:
                labels = torch.cat([labels[a:b] for a, b in _parts(pattern, part)])
            hit = hit or labels.numel() > 0
            if bool(roles["producer"][labels].any()) or ">" not in pattern:
                asked |= dict.fromkeys(labels.tolist(), pattern)
        if not hit:
            names = sorted({b.tensor.rpartition(".")[0] for b in log.blocks if b.tensor})
            raise TraceError(
                f"keep={pattern!r} matches no layer that produces channels; layers are "
                f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
            )
    return asked


def _parts(pattern: str, text: str) -> list[tuple[int, int]]:
    """Parse "0:4,8:12]" into pairs of numbers."""
    found = []
    for part in text.rstrip("]").split(","):
        start, _, end = part.partition(":")
        if not (start.isdigit() and end.isdigit()):
            raise TraceError(f"keep={pattern!r}: write a part of a layer as name[a:b]")
        found.append((int(start), int(end)))
    return found


def _reasons(
    log: TraceLog, roots: Tensor, streams: dict[int, Location], residual: str, asked: dict[int, str]
) -> dict[int, tuple[Location, str]]:
    """class -> where and why it is kept."""
    reasons: dict[int, tuple[Location, str]] = {}
    for keep in log.keep_reasons:
        for root in roots[keep.labels].unique().tolist():
            reasons.setdefault(root, (keep.where, keep.reason))
    if residual == "keep":
        why = "residual stream; residual='couple' prunes it jointly"
        for root, where in streams.items():
            reasons.setdefault(int(roots[root]), (where, why))
    for label, pattern in asked.items():
        reasons[int(roots[label])] = (Location("keep", ""), f"asked for by keep={pattern!r}")
    return reasons


def _partition(
    log: TraceLog, roots: Tensor, inside: Tensor, roles: dict[str, Tensor]
) -> tuple[Tensor, Tensor, list[Group]]:
    """Form one group of all classes that touch the same tensor axes equally often."""
    lists = _groups_of_classes(log, roots, inside, roles["producer"])
    sizes = [len(group_roots) for group_roots in lists]
    group_of = torch.full((log.total,), -1)
    channel_of = torch.zeros(log.total, dtype=torch.long)
    if sizes:
        index = torch.tensor([root for group_roots in lists for root in group_roots])
        group_of[index] = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        channel_of[index] = torch.cat([torch.arange(size) for size in sizes])
    group_of = group_of[roots].masked_fill_(~inside, -1)
    channel_of = channel_of[roots].masked_fill_(group_of < 0, 0)
    groups = describe_groups(log, group_of, channel_of, roles, sizes)
    return group_of, channel_of, groups


def _groups_of_classes(
    log: TraceLog, roots: Tensor, inside: Tensor, producer: Tensor
) -> list[list[int]]:
    """The classes of each group, in the order of their first producers."""
    blocks = block_of(log)
    named = torch.tensor([bool(b.tensor) for b in log.blocks] or [True])
    members = (inside & named[blocks]).nonzero().flatten()
    # a multiset hash of the axes a class touches: equal for the classes of one group
    code = (torch.arange(len(log.blocks)) + 1) * 0x9E3779B97F4A7C1
    code = (code ^ (code >> 29)) * 0x3F58476D1CE4E5B9
    code = code ^ (code >> 32)
    signature = torch.zeros(log.total, dtype=torch.long)
    signature.index_add_(0, roots[members], code[blocks[members]])
    made = members[producer[members]]
    classes = roots[made].unique()
    first = torch.full((log.total,), log.total)
    first.scatter_reduce_(
        0, roots[made], made, "amin"
    )  # groups are ordered by their first producer
    classes = classes[first[classes].argsort()]
    lists: dict[int, list[int]] = {}
    for root, sign in zip(classes.tolist(), signature[classes].tolist(), strict=True):
        lists.setdefault(sign, []).append(root)
    return list(lists.values())
