"""From ties to groups: which channels form a class, which classes form a group, what is kept."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import TraceError
from ..graph.channel_graph import Group, Kept, Slot
from ..graph.label_index import Balance, Count, Structure
from ..graph.trace_log import Block, Read, Record, Where
from .residual_streams import (
    Network,
    add_selections,
    distinct_reads,
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
    structure: Structure
    roots: Tensor  # label -> class


def group_channels(
    record: Record, network: Network, *, residual: str, keep: Sequence[str],
    counts: tuple[Count, ...], balances: tuple[Balance, ...],
) -> Grouping:  # fmt: skip
    """Solve the ties and cut the network's channels into groups."""
    roles = {name: _mask(record, labels) for name, labels in record.roles.items()}
    for name in ("producer", "consumer", "scale"):
        roles.setdefault(name, torch.zeros(record.total, dtype=torch.bool))
    ties, selected = list(record.ties), []
    roots = components(record.total, ties)
    streams = find_streams(record, roots)
    if residual == "keep":
        selected = [
            read
            for read in selectable(record, network, roles, streams, roots)
            if not any(_names_selection(p, record, network, read) for p in keep)
        ]
        cut = {mark(read.source, read.target) for read in selected}
        ties = [tie for tie in ties if tie.kind != "read" or mark(tie.a, tie.b) not in cut]
        roots = components(record.total, ties)
        alone = torch.bincount(roots, minlength=record.total) == 1
        tied = [read for read in selected if not bool(alone[roots[read.target]].all())]
        if tied:  # weights that belong to other channels too cannot select
            cut -= {mark(read.source, read.target) for read in tied}
            selected = [r for r in selected if mark(r.source, r.target) in cut]
            ties = [t for t in record.ties if t.kind != "read" or mark(t.a, t.b) not in cut]
            roots = components(record.total, ties)
    reasons = _reasons(record, roots, streams, residual, _asked(record, roles, keep))
    free = torch.ones(record.total, dtype=torch.bool)
    for root in reasons:
        free[root] = False
    heard = _any_in_class(roots, roles["consumer"]) & _any_in_class(roots, roles["producer"])
    unheard = _any_in_class(roots, roles["producer"]) & ~_any_in_class(roots, roles["consumer"])
    lonely = roots[unheard & roles["producer"]].unique().tolist()
    nobody = Where("forward", "")
    reasons |= {
        r: (nobody, "nobody reads it in this forward pass") for r in lonely if r not in reasons
    }
    inside = free[roots] & heard
    for balance in balances:  # a part that stays whole holds the parts that must be as wide
        if any(not bool(inside[part].any()) for part in balance.parts):
            labels = torch.cat(balance.parts)
            why = Where(balance.op, balance.module), "must be as wide as channels that are kept"
            for root in roots[labels].unique().tolist():
                reasons.setdefault(root, why)
                free[root] = False
            inside = free[roots] & heard
    group_of, channel_of, groups = _partition(record, roots, inside, roles)
    structure = Structure(
        blocks=tuple(record.blocks), shapes=network.shapes, parameters=network.parameters,
        group_of=group_of, channel_of=channel_of, reads=tuple(distinct_reads(record)),
        sums=dict(record.sums), roles=roles, macs=tuple(record.macs), batch=network.batch,
        shifts=dict(record.shifts), indices=tuple(record.indices),
        counts=counts, balances=balances, ties=tuple(ties),
    )  # fmt: skip
    structure, groups = add_selections(structure, record, network, groups, selected)
    kept = _kept(record, roots, inside, roles, reasons)
    return Grouping(tuple(groups), tuple(kept), structure, roots)


def _mask(record: Record, labels: list[Tensor]) -> Tensor:
    mask = torch.zeros(record.total, dtype=torch.bool)
    mask[torch.cat(labels)] = True
    return mask


def _any_in_class(roots: Tensor, mask: Tensor) -> Tensor:
    """label -> does the mask hold anywhere in its class."""
    hit = torch.zeros_like(mask)
    hit[roots[mask]] = True
    return hit[roots]


def _names_selection(pattern: str, record: Record, network: Network, read: Read) -> bool:
    norm = record.block_at(int(read.source[0])).tensor.rpartition(".")[0]
    reader = network.layers[read.weight]
    return any(_matches(pattern, name) for name in (norm, reader, f"{norm}>{reader}"))


def _matches(pattern: str, module: str) -> bool:
    inside = module == pattern or module.startswith(f"{pattern}.")
    return inside or fnmatch.fnmatch(module, pattern)


def _asked(record: Record, roles: dict[str, Tensor], keep: Sequence[str]) -> dict[int, str]:
    """Labels of the producers and scales that the user named."""
    asked: dict[int, str] = {}
    for pattern in keep:
        base, _, part = pattern.partition("~")[0].partition(">")[0].partition("[")
        hit = False
        for block in record.blocks:
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
            names = sorted({b.tensor.rpartition(".")[0] for b in record.blocks if b.tensor})
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
    record: Record, roots: Tensor, streams: dict[int, Where], residual: str, asked: dict[int, str]
) -> dict[int, tuple[Where, str]]:
    """class -> why it stays."""
    reasons: dict[int, tuple[Where, str]] = {}
    for keep in record.keeps:
        for root in roots[keep.labels].unique().tolist():
            reasons.setdefault(root, (keep.where, keep.reason))
    if residual == "keep":
        why = "residual stream; residual='couple' prunes it jointly"
        for root, where in streams.items():
            reasons.setdefault(int(roots[root]), (where, why))
    for label, pattern in asked.items():
        reasons[int(roots[label])] = (Where("keep", ""), f"asked for by keep={pattern!r}")
    return reasons


def _partition(
    record: Record, roots: Tensor, inside: Tensor, roles: dict[str, Tensor]
) -> tuple[Tensor, Tensor, list[Group]]:
    """Classes that touch the same tensor axes equally often form one group."""
    lists = _groups_of_classes(record, roots, inside, roles["producer"])
    sizes = [len(group_roots) for group_roots in lists]
    group_of = torch.full((record.total,), -1)
    channel_of = torch.zeros(record.total, dtype=torch.long)
    if sizes:
        index = torch.tensor([root for group_roots in lists for root in group_roots])
        group_of[index] = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
        channel_of[index] = torch.cat([torch.arange(size) for size in sizes])
    group_of = group_of[roots].masked_fill_(~inside, -1)
    channel_of = channel_of[roots].masked_fill_(group_of < 0, 0)
    groups = _describe(record, group_of, channel_of, roles, sizes)
    return group_of, channel_of, groups


def _groups_of_classes(
    record: Record, roots: Tensor, inside: Tensor, producer: Tensor
) -> list[list[int]]:
    """The classes of each group, in the order of their first producers."""
    block_of = _block_of(record)
    named = torch.tensor([bool(b.tensor) for b in record.blocks] or [True])
    members = (inside & named[block_of]).nonzero().flatten()
    # a multiset hash of the axes a class touches: equal for the classes of one group
    code = (torch.arange(len(record.blocks)) + 1) * 0x9E3779B97F4A7C1
    code = (code ^ (code >> 29)) * 0x3F58476D1CE4E5B9
    code = code ^ (code >> 32)
    signature = torch.zeros(record.total, dtype=torch.long)
    signature.index_add_(0, roots[members], code[block_of[members]])
    made = members[producer[members]]
    classes = roots[made].unique()
    first = torch.full((record.total,), record.total)
    first.scatter_reduce_(0, roots[made], made, "amin")  # a class is placed by its first producer
    classes = classes[first[classes].argsort()]
    lists: dict[int, list[int]] = {}
    for root, sign in zip(classes.tolist(), signature[classes].tolist(), strict=True):
        lists.setdefault(sign, []).append(root)
    return list(lists.values())


def _block_of(record: Record) -> Tensor:
    sizes = torch.tensor([b.size for b in record.blocks], dtype=torch.long)
    return torch.arange(len(record.blocks)).repeat_interleave(sizes)


def _describe(
    record: Record, group_of: Tensor, channel_of: Tensor, roles: dict[str, Tensor],
    sizes: list[int],
) -> list[Group]:  # fmt: skip
    """Turn labels into slots: sort by group, tensor axis and channel, then cut into runs."""
    members = (group_of >= 0).nonzero().flatten()
    if not members.numel():
        return []
    key = group_of[members].mul_(len(record.blocks)).add_(_block_of(record)[members])
    order = (key * (int(channel_of.max()) + 1)).add_(channel_of[members]).argsort(stable=True)
    members, key = members[order], key[order]
    del order
    runs, lengths = key.unique_consecutive(return_counts=True)
    numbers = list(range(max(block.size for block in record.blocks)))  # one object for each
    slots: list[dict[str, list[Slot]]] = [{} for _ in sizes]
    entries: list[list[tuple[Block, Tensor]]] = [[] for _ in sizes]
    for run, labels in zip(runs.tolist(), members.split(lengths.tolist()), strict=True):
        group, block = divmod(run, len(record.blocks))
        where = record.blocks[block]
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


def _name(block: Block, positions: Tensor) -> str:
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
    record: Record, roots: Tensor, inside: Tensor, roles: dict[str, Tensor],
    reasons: dict[int, tuple[Where, str]],
) -> list[Kept]:  # fmt: skip
    """What producers make and nobody may remove, a line for each reason."""
    lines: list[Kept] = []
    for block in record.blocks:
        labels = torch.arange(block.start, block.start + block.size)
        labels = labels[roles["producer"][labels] & ~inside[labels]]
        if not block.tensor or not labels.numel():
            continue
        by_reason: dict[tuple[Where, str], list[int]] = {}
        for label, root in zip(labels.tolist(), roots[labels].tolist(), strict=True):
            why = reasons.get(root, (Where("forward", ""), "never met again"))
            by_reason.setdefault(why, []).append(label - block.start)
        for (where, reason), positions in by_reason.items():
            name = _name(block, torch.tensor(positions))
            lines.append(Kept(name, len(positions), where.op, where.module, reason))
    return lines
