"""From ties to groups: which channels form a class, which classes form a group, what is kept."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..errors import TraceError
from ..graph import Balance, Count, Group, Kept, Selection, Slot, Structure
from ..record import Block, Read, Record, Tie, Where


@dataclass(frozen=True)
class Grouping:
    """The result of one round: groups, what is kept, and the labels behind them."""

    groups: tuple[Group, ...]
    kept: tuple[Kept, ...]
    structure: Structure
    roots: Tensor  # label -> class


@dataclass(frozen=True)
class Network:
    """What grouping has to know of the model besides the record."""

    shapes: dict[str, tuple[int, ...]]
    parameters: frozenset[str]
    layers: dict[str, str]  # weight name -> module, for plain convolutions and linear layers
    batch: int


def group_channels(
    record: Record, network: Network, *, residual: str, keep: Sequence[str],
    counts: tuple[Count, ...], balances: tuple[Balance, ...],
) -> Grouping:  # fmt: skip
    """Solve the ties and cut the network's channels into groups."""
    roles = {name: _mask(record, labels) for name, labels in record.roles.items()}
    for name in ("producer", "consumer", "scale"):
        roles.setdefault(name, torch.zeros(record.total, dtype=torch.bool))
    streams = _streams(record)
    ties, selected = list(record.ties), []
    roots = components(record.total, ties)
    if residual == "keep":
        selected = _selectable(record, network, roles, streams)
        cut = {_mark(read.source, read.target) for read in selected}
        ties = [tie for tie in ties if tie.kind != "read" or _mark(tie.a, tie.b) not in cut]
        roots = components(record.total, ties)
        alone = torch.bincount(roots, minlength=record.total) == 1
        tied = [read for read in selected if not bool(alone[roots[read.target]].all())]
        if tied:  # weights that belong to other channels too cannot select
            cut -= {_mark(read.source, read.target) for read in tied}
            selected = [r for r in selected if _mark(r.source, r.target) in cut]
            ties = [t for t in record.ties if t.kind != "read" or _mark(t.a, t.b) not in cut]
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
        indices=tuple(record.indices),
        counts=counts, balances=balances, ties=tuple(ties),
    )  # fmt: skip
    structure, groups = _add_selections(structure, record, network, groups, selected)
    kept = _kept(record, roots, inside, roles, reasons)
    return Grouping(tuple(groups), tuple(kept), structure, roots)


def components(total: int, ties: Sequence[Tie]) -> Tensor:
    """label -> smallest label it is tied to, over any number of ties."""
    parent = torch.arange(total)
    if not ties:
        return parent
    a = torch.cat([tie.a for tie in ties])
    b = torch.cat([tie.b for tie in ties])
    while True:
        low = torch.minimum(parent[a], parent[b])
        parent.scatter_reduce_(0, parent[a], low, "amin")
        parent.scatter_reduce_(0, parent[b], low, "amin")
        while not torch.equal(up := parent[parent], parent):
            parent = up
        open_ties = parent[a] != parent[b]
        if not bool(open_ties.any()):
            return parent
        a, b = a[open_ties], b[open_ties]


# ---- residual streams ----------------------------------------------------------------------------


def _streams(record: Record) -> dict[int, Where]:
    """Classes (over all ties) in which an addition ties channels of different producers."""
    apart = components(record.total, [tie for tie in record.ties if tie.kind != "add"])
    together = components(record.total, record.ties)
    streams: dict[int, Where] = {}
    for tie in record.ties:
        if tie.kind == "add":
            residual = apart[tie.a] != apart[tie.b]
            for root in together[tie.a[residual]].unique().tolist():
                streams.setdefault(root, tie.where)
    return streams


def _selectable(
    record: Record, network: Network, roles: dict[str, Tensor], streams: dict[int, Where]
) -> list[Read]:
    """Reads of a BN that reads a residual stream, by layers that can select their inputs."""
    roots = components(record.total, record.ties)
    in_stream = torch.zeros(record.total, dtype=torch.bool)
    in_stream[list(streams)] = True
    added = _feeds_a_sum(record)
    uses: dict[str, list[Read]] = {}
    for read in distinct_reads(record):
        uses.setdefault(read.weight, []).append(read)
    found = []
    for weight, reads in uses.items():
        read = reads[0]
        if len(reads) > 1 or weight not in network.layers or read.groups != 1:
            continue
        if bool((read.source < 0).any()) or not bool(roles["scale"][read.source].all()):
            continue
        if not bool(in_stream[roots[read.source]].all()) or _scale_block(record, read) is None:
            continue
        if bool(added[read.source].any()):
            continue  # this BN does not read the stream, it is a part of it
        out = read.output
        if out is not None and _other_stream(roots, in_stream, read.source, out):
            continue  # a shortcut: it reads the full stream
        found.append(read)
    return found


def _feeds_a_sum(record: Record) -> Tensor:
    """label -> is it added to something as it is, before a BN or weights read it."""
    near = components(record.total, [t for t in record.ties if t.kind not in ("norm", "read")])
    hit = torch.zeros(record.total, dtype=torch.bool)
    for tie in record.ties:
        if tie.kind == "add":
            hit[near[tie.a]] = True
            hit[near[tie.b]] = True
    return hit[near]


def _other_stream(roots: Tensor, in_stream: Tensor, source: Tensor, out: Tensor) -> bool:
    """Does the reader feed a residual stream that is not the one it reads?"""
    feeds = bool(in_stream[roots[out]].any())
    return feeds and not bool((roots[out[0]] == roots[source]).any())


def distinct_reads(record: Record) -> list[Read]:
    """Each read once, though both passes saw it."""
    seen: dict[tuple[str, int, int], list[Read]] = {}
    for read in record.reads:
        same = seen.setdefault((read.weight, int(read.source[0]), read.source.numel()), [])
        if not any(_alike(read, other) for other in same):
            same.append(read)
    return [read for same in seen.values() for read in same]


def _alike(a: Read, b: Read) -> bool:
    return torch.equal(a.source, b.source) and torch.equal(a.target, b.target)


def _mark(source: Tensor, target: Tensor) -> tuple[int, int, int]:
    """Enough to recognise a read: no weight slice reads two sources at its first entry."""
    return int(source[0]), int(target[0]), source.numel()


def _scale_block(record: Record, read: Read) -> Block | None:
    block = record.block_at(int(read.source.min()))
    return block if int(read.source.max()) < block.start + block.size else None


def _add_selections(
    structure: Structure,
    record: Record,
    network: Network,
    groups: list[Group],
    selected: list[Read],
) -> tuple[Structure, list[Group]]:
    """A group for every selectable read, unless its weights are tied to something else."""
    group_of, channel_of = structure.group_of.clone(), structure.channel_of.clone()
    selections: list[Selection] = []
    heard = _heard_otherwise(record, selected)
    per_norm: dict[str, int] = {}
    for read in selected:
        block = _scale_block(record, read)
        assert block is not None
        per_norm[block.tensor] = per_norm.get(block.tensor, 0) + 1
    for read in selected:
        block = _scale_block(record, read)
        assert block is not None
        norm, reader = block.tensor.rpartition(".")[0], network.layers[read.weight]
        channels, inverse = read.source.unique(return_inverse=True)
        order = inverse.argsort(stable=True)
        reads_on = record.block_at(int(read.target[0]))
        entries = read.target[order] - reads_on.start
        group_of[read.target] = len(groups)
        channel_of[read.target] = inverse
        selections.append(
            Selection(
                len(groups),
                reader,
                norm,
                read.target,
                read.source,
                not bool(heard[read.source].any()),
            )
        )
        groups.append(
            Group(
                name=norm if per_norm[block.tensor] == 1 else f"{norm}>{reader}",
                size=channels.numel(),
                kind="selection",
                producers=(),
                scales=(Slot(block.tensor, 0, tuple((channels - block.start).tolist())),),
                consumers=(Slot(read.weight, reads_on.dim, tuple(entries.tolist())),),
            )
        )
    return replace(
        structure, group_of=group_of, channel_of=channel_of, selections=tuple(selections)
    ), groups


def _heard_otherwise(record: Record, selected: list[Read]) -> Tensor:
    """label -> is it read, added or kept anywhere but in a selection."""
    heard = torch.zeros(record.total + 1, dtype=torch.bool)  # one more for labels below 0
    cut = {_mark(read.source, read.target) for read in selected}
    for read in record.reads:
        if _mark(read.source, read.target) not in cut:
            heard[read.source] = True
    for tie in record.ties:
        if tie.kind == "add":
            heard[tie.a] = True
            heard[tie.b] = True
    for keep in record.keeps:
        heard[keep.labels] = True
    return heard[:-1]


# ---- classes and groups --------------------------------------------------------------------------


def _mask(record: Record, labels: list[Tensor]) -> Tensor:
    mask = torch.zeros(record.total, dtype=torch.bool)
    mask[torch.cat(labels)] = True
    return mask


def _any_in_class(roots: Tensor, mask: Tensor) -> Tensor:
    """label -> does the mask hold anywhere in its class."""
    hit = torch.zeros_like(mask)
    hit[roots[mask]] = True
    return hit[roots]


def _asked(record: Record, roles: dict[str, Tensor], keep: Sequence[str]) -> dict[int, str]:
    """Labels of the producers that the user named."""
    asked: dict[int, str] = {}
    for pattern in keep:
        base, _, part = pattern.partition("[")
        hit = False
        for block in record.blocks:
            module = block.tensor.rpartition(".")[0]
            same = module == base or module.startswith(f"{base}.") or fnmatch.fnmatch(module, base)
            if not block.tensor or not same:
                continue
            labels = torch.arange(block.start, block.start + block.size)
            labels = labels[roles["producer"][labels] | roles["scale"][labels]]
            if part:
                start, _, end = part.rstrip("]").partition(":")
                if not (start.isdigit() and end.isdigit()):
                    raise TraceError(f"keep={pattern!r}: write a part of a layer as name[a:b]")
                labels = labels[int(start) : int(end)]
            hit = hit or labels.numel() > 0
            asked |= dict.fromkeys(labels.tolist(), pattern)
        if not hit:
            names = sorted({b.tensor.rpartition(".")[0] for b in record.blocks if b.tensor})
            raise TraceError(
                f"keep={pattern!r} matches no layer that makes channels; layers are "
                f"{', '.join(names[:8])}{', …' if len(names) > 8 else ''}"
            )
    return asked


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
    block_of = _block_of(record)
    named = torch.tensor([bool(b.tensor) for b in record.blocks] or [True])
    members = (inside & named[block_of]).nonzero().flatten()
    # a multiset hash of the axes a class touches: equal for the classes of one group
    code = (block_of + 1) * 0x9E3779B97F4A7C1
    code = (code ^ (code >> 29)) * 0x3F58476D1CE4E5B9
    code = code ^ (code >> 32)
    signature = torch.zeros(record.total, dtype=torch.long)
    signature.index_add_(0, roots[members], code[members])
    made = members[roles["producer"][members]]
    first = torch.full((record.total,), record.total)
    first.scatter_reduce_(0, roots[made], made, "amin")  # a class is placed by its first producer
    classes = roots[made].unique()
    classes = classes[first[classes].argsort()]
    group_of = torch.full((record.total,), -1)
    channel_of = torch.zeros(record.total, dtype=torch.long)
    lists: dict[int, list[int]] = {}
    for root, sign in zip(classes.tolist(), signature[classes].tolist(), strict=True):
        lists.setdefault(sign, []).append(root)
    for number, group_roots in enumerate(lists.values()):
        index = torch.tensor(group_roots)
        group_of[index] = number
        channel_of[index] = torch.arange(len(group_roots))
    in_group = inside & (group_of[roots] >= 0)
    group_of = torch.where(in_group, group_of[roots], -1)
    channel_of = torch.where(in_group, channel_of[roots], 0)
    groups = _describe(
        record, block_of, group_of, channel_of, roles, [len(g) for g in lists.values()]
    )
    return group_of, channel_of, groups


def _block_of(record: Record) -> Tensor:
    sizes = torch.tensor([b.size for b in record.blocks], dtype=torch.long)
    return torch.arange(len(record.blocks)).repeat_interleave(sizes)


def _describe(
    record: Record, block_of: Tensor, group_of: Tensor, channel_of: Tensor,
    roles: dict[str, Tensor], sizes: list[int],
) -> list[Group]:  # fmt: skip
    """Turn labels into slots: sort by group, tensor axis and channel, then cut into runs."""
    members = (group_of >= 0).nonzero().flatten()
    key = group_of[members] * len(record.blocks) + block_of[members]
    order = (key * (int(channel_of.max()) + 1) + channel_of[members]).argsort(stable=True)
    members, key = members[order], key[order]
    runs, lengths = key.unique_consecutive(return_counts=True)
    slots: list[dict[str, list[Slot]]] = [{} for _ in sizes]
    entries: list[list[tuple[Block, Tensor]]] = [[] for _ in sizes]
    for run, labels in zip(runs.tolist(), members.split(lengths.tolist()), strict=True):
        group, block = divmod(run, len(record.blocks))
        where = record.blocks[block]
        if not where.tensor:
            continue
        slot = Slot(where.tensor, where.dim, tuple((labels - where.start).tolist()))
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
