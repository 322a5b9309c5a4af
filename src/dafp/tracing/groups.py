"""From ties to groups: which channels form a class, which classes form a group, what is kept."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import TraceError
from ..graph.channel_graph import Group, Kept, Slot
from ..graph.label_index import EvenSplit, LabelIndex, WidthAttribute
from ..graph.trace_log import Consumer, LabelBlock, Location, TraceLog
from .residual_streams import (
    ModelInfo,
    add_selections,
    distinct_consumers,
    find_streams,
    mark,
    selectable,
)
from .union_find import components


@dataclass(frozen=True)
class Grouping:
    """The result of one round: groups, what is kept, and the labels behind them."""

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
    """Solve the ties and cut the network's channels into groups."""
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
        slicing = {mark(consumer.source, consumer.target) for consumer in selected}
        ties = [tie for tie in ties if tie.kind != "consume" or mark(tie.a, tie.b) not in slicing]
        roots = components(log.total, ties)
        alone = torch.bincount(roots, minlength=log.total) == 1
        tied = [consumer for consumer in selected if not bool(alone[roots[consumer.target]].all())]
        if tied:  # weights that belong to other channels too cannot select
            slicing -= {mark(consumer.source, consumer.target) for consumer in tied}
            selected = [r for r in selected if mark(r.source, r.target) in slicing]
            ties = [t for t in log.ties if t.kind != "consume" or mark(t.a, t.b) not in slicing]
            roots = components(log.total, ties)
    reasons = _reasons(log, roots, streams, residual, _asked(log, roles, keep))
    free = torch.ones(log.total, dtype=torch.bool)
    for root in reasons:
        free[root] = False
    heard = _any_in_class(roots, roles["consumer"]) & _any_in_class(roots, roles["producer"])
    unheard = _any_in_class(roots, roles["producer"]) & ~_any_in_class(roots, roles["consumer"])
    lonely = roots[unheard & roles["producer"]].unique().tolist()
    nobody = Location("forward", "")
    reasons |= {
        r: (nobody, "nobody reads it in this forward pass") for r in lonely if r not in reasons
    }
    inside = free[roots] & heard
    for even_split in even_splits:  # a part that stays whole holds the parts that must be as wide
        if any(not bool(inside[part].any()) for part in even_split.parts):
            labels = torch.cat(even_split.parts)
            why = (
                Location(even_split.op, even_split.module),
                "must be as wide as channels that are kept",
            )
            for root in roots[labels].unique().tolist():
                reasons.setdefault(root, why)
                free[root] = False
            inside = free[roots] & heard
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
    kept = _kept(log, roots, inside, roles, reasons)
    return Grouping(tuple(groups), tuple(kept), label_index, roots)


def _mask(log: TraceLog, labels: list[Tensor]) -> Tensor:
    mask = torch.zeros(log.total, dtype=torch.bool)
    mask[torch.cat(labels)] = True
    return mask


def _any_in_class(roots: Tensor, mask: Tensor) -> Tensor:
    """label -> does the mask hold anywhere in its class."""
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
    """Labels of the producers and scales that the user named."""
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
                f"keep={pattern!r} matches no layer that makes channels; layers are "
                f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
            )
    return asked


def _parts(pattern: str, text: str) -> list[tuple[int, int]]:
    """[0:4,8:12] as pairs of numbers."""
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
    """class -> why it stays."""
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
    """Classes that touch the same tensor axes equally often form one group."""
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
    groups = _describe(log, group_of, channel_of, roles, sizes)
    return group_of, channel_of, groups


def _groups_of_classes(
    log: TraceLog, roots: Tensor, inside: Tensor, producer: Tensor
) -> list[list[int]]:
    """The classes of each group, in the order of their first producers."""
    block_of = _block_of(log)
    named = torch.tensor([bool(b.tensor) for b in log.blocks] or [True])
    members = (inside & named[block_of]).nonzero().flatten()
    # a multiset hash of the axes a class touches: equal for the classes of one group
    code = (torch.arange(len(log.blocks)) + 1) * 0x9E3779B97F4A7C1
    code = (code ^ (code >> 29)) * 0x3F58476D1CE4E5B9
    code = code ^ (code >> 32)
    signature = torch.zeros(log.total, dtype=torch.long)
    signature.index_add_(0, roots[members], code[block_of[members]])
    made = members[producer[members]]
    classes = roots[made].unique()
    first = torch.full((log.total,), log.total)
    first.scatter_reduce_(0, roots[made], made, "amin")  # a class is placed by its first producer
    classes = classes[first[classes].argsort()]
    lists: dict[int, list[int]] = {}
    for root, sign in zip(classes.tolist(), signature[classes].tolist(), strict=True):
        lists.setdefault(sign, []).append(root)
    return list(lists.values())


def _block_of(log: TraceLog) -> Tensor:
    sizes = torch.tensor([b.size for b in log.blocks], dtype=torch.long)
    return torch.arange(len(log.blocks)).repeat_interleave(sizes)


def _describe(
    log: TraceLog,
    group_of: Tensor,
    channel_of: Tensor,
    roles: dict[str, Tensor],
    sizes: list[int],
) -> list[Group]:
    """Turn labels into slots: sort by group, tensor axis and channel, then cut into runs."""
    members = (group_of >= 0).nonzero().flatten()
    if not members.numel():
        return []
    key = group_of[members].mul_(len(log.blocks)).add_(_block_of(log)[members])
    order = (key * (int(channel_of.max()) + 1)).add_(channel_of[members]).argsort(stable=True)
    members, key = members[order], key[order]
    del order
    runs, lengths = key.unique_consecutive(return_counts=True)
    numbers = list(range(max(block.size for block in log.blocks)))  # one object for each
    slots: list[dict[str, list[Slot]]] = [{} for _ in sizes]
    entries: list[list[tuple[LabelBlock, Tensor]]] = [[] for _ in sizes]
    for run, labels in zip(runs.tolist(), members.split(lengths.tolist()), strict=True):
        group, block = divmod(run, len(log.blocks))
        where = log.blocks[block]
        if not where.tensor:
            continue
        slot = Slot(
            where.tensor,
            where.dim,
            tuple(map(numbers.__getitem__, (labels - where.start).tolist())),
        )
        kinds = [k for k in ("producer", "scale", "consumer") if bool(roles[k][labels].any())]
        for kind in kinds or ["follower"]:
            slots[group].setdefault(kind, []).append(slot)
        if "producer" in kinds:
            entries[group].append((where, labels - where.start))
    groups: list[Group] = []
    taken: dict[str, int] = {}
    for number, size in enumerate(sizes):
        name = _name(*entries[number][0])
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            name = f"{name}~{taken[name]}"
        groups.append(
            Group(name, size, "filter", *(tuple(slots[number].get(k, ())) for k in _SLOT_KINDS))
        )
    return groups


_SLOT_KINDS = ("producer", "scale", "consumer", "follower")


def _name(block: LabelBlock, positions: Tensor) -> str:
    module = block.tensor.rpartition(".")[0] or block.tensor
    if positions.numel() == block.size:
        return module
    return f"{module}[{_ranges(positions)}]"


def _ranges(positions: Tensor) -> str:
    """[3, 4, 5, 8] -> 3:6,8:9; more than three runs are named by their ends."""
    values = positions.sort().values
    jumps = (values.diff() != 1).nonzero().flatten().tolist()
    if len(jumps) > 2:
        return f"{int(values[0])}:{int(values[-1]) + 1}"
    starts, ends = [0, *[j + 1 for j in jumps]], [*jumps, values.numel() - 1]
    return ",".join(
        f"{int(values[s])}:{int(values[e]) + 1}" for s, e in zip(starts, ends, strict=True)
    )


def _kept(
    log: TraceLog,
    roots: Tensor,
    inside: Tensor,
    roles: dict[str, Tensor],
    reasons: dict[int, tuple[Location, str]],
) -> list[Kept]:
    """What producers make and nobody may remove, a line for each reason."""
    lines: list[Kept] = []
    for block in log.blocks:
        labels = torch.arange(block.start, block.start + block.size)
        labels = labels[roles["producer"][labels] & ~inside[labels]]
        if not block.tensor or not labels.numel():
            continue
        by_reason: dict[tuple[Location, str], list[int]] = {}
        for label, root in zip(labels.tolist(), roots[labels].tolist(), strict=True):
            why = reasons.get(root, (Location("forward", ""), "never met again"))
            by_reason.setdefault(why, []).append(label - block.start)
        for (where, reason), positions in by_reason.items():
            name = _name(block, torch.tensor(positions))
            lines.append(Kept(name, len(positions), where.op, where.module, reason))
    return lines
