"""Residual streams: where they run, and which of their readers can select channels."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..graph.channel_graph import Group, Slot
from ..graph.label_index import Selection, Structure
from ..graph.trace_log import Block, Read, Record, Where
from .union_find import components


@dataclass(frozen=True)
class Network:
    """What grouping has to know of the model besides the record."""

    shapes: dict[str, tuple[int, ...]]
    parameters: frozenset[str]
    layers: dict[str, str]  # weight name -> module, for plain convolutions and linear layers
    batch: int
    used_otherwise: dict[str, list[Tensor]]  # module -> channels it uses besides its weighted sum


def find_streams(record: Record, together: Tensor) -> dict[int, Where]:
    """Classes (over all ties) in which an addition ties channels of different producers."""
    apart = components(record.total, [tie for tie in record.ties if tie.kind != "add"])
    streams: dict[int, Where] = {}
    for tie in record.ties:
        if tie.kind == "add":
            residual = apart[tie.a] != apart[tie.b]
            for root in together[tie.a[residual]].unique().tolist():
                streams.setdefault(root, tie.where)
    return streams


def selectable(
    record: Record, network: Network, roles: dict[str, Tensor], streams: dict[int, Where],
    roots: Tensor,
) -> list[Read]:  # fmt: skip
    """Reads of a BN that reads a residual stream, by layers that can select their inputs."""
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
        if read.where.module != network.layers[weight]:
            continue  # called as a function: there is no module call to select in
        if bool((read.source < 0).any()) or not bool(roles["scale"][read.source].all()):
            continue
        if not bool(in_stream[roots[read.source]].all()) or _scale_block(record, read) is None:
            continue
        other = network.used_otherwise.get(read.where.module, [])
        if any(bool(torch.isin(read.source, facet).any()) for facet in other):
            continue  # the module needs its whole input
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


def mark(source: Tensor, target: Tensor) -> tuple[int, int, int]:
    """Enough to recognise a read: no weight slice reads two sources at its first entry."""
    return int(source[0]), int(target[0]), source.numel()


def _scale_block(record: Record, read: Read) -> Block | None:
    block = record.block_at(int(read.source.min()))
    return block if int(read.source.max()) < block.start + block.size else None


def add_selections(
    structure: Structure,
    record: Record,
    network: Network,
    groups: list[Group],
    selected: list[Read],
) -> tuple[Structure, list[Group]]:
    """A group for every selectable read, unless its weights are tied to something else."""
    if not selected:
        return structure, groups
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
    cut = {mark(read.source, read.target) for read in selected}
    for read in record.reads:
        if mark(read.source, read.target) not in cut:
            heard[read.source] = True
    for tie in record.ties:
        if tie.kind == "add":
            heard[tie.a] = True
            heard[tie.b] = True
    for keep in record.keeps:
        heard[keep.labels] = True
    return heard[:-1]
