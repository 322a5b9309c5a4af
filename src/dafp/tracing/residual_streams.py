"""Residual streams: which classes belong to one, and which consumers can select channels of it.

An addition that ties channels of different producers makes a residual stream.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..graph.channel_graph import Group, Slot
from ..graph.label_index import NORM_TENSORS, InputSelection, LabelIndex
from ..graph.trace_log import Consumer, LabelBlock, Location, TraceLog
from .union_find import components


@dataclass(frozen=True)
class TracedModel:
    """What grouping needs to know about the model, in addition to the trace log."""

    shapes: dict[str, tuple[int, ...]]
    parameters: frozenset[str]
    layers: dict[str, str]  # weight name -> module, for plain convolutions and linear layers
    batch: int
    used_elsewhere: dict[str, list[Tensor]]  # module -> channels used outside its weighted sum
    rearranged: tuple[Tensor, ...] = ()  # channels that go through views, slices and the like


def find_streams(log: TraceLog, together: Tensor) -> dict[int, Location]:
    """class -> the first addition in it that ties channels of different producers."""
    apart = components(log.total, [tie for tie in log.ties if tie.kind != "add"])
    streams: dict[int, Location] = {}
    for tie in log.ties:
        if tie.kind == "add":
            residual = apart[tie.a] != apart[tie.b]
            for root in together[tie.a[residual]].unique().tolist():
                streams.setdefault(root, tie.where)
    return streams


def selectable(
    log: TraceLog,
    model_info: TracedModel,
    roles: dict[str, Tensor],
    streams: dict[int, Location],
    roots: Tensor,
) -> list[Consumer]:
    """Layers that can select their inputs, after a BN whose input is a residual stream."""
    in_stream = torch.zeros(log.total, dtype=torch.bool)
    in_stream[list(streams)] = True
    added = _feeds_a_sum(log)
    uses: dict[str, list[Consumer]] = {}
    for consumer in distinct_consumers(log):
        uses.setdefault(consumer.weight, []).append(consumer)
    found = []
    for weight, consumers in uses.items():
        consumer = consumers[0]
        if len(consumers) > 1 or weight not in model_info.layers or consumer.groups != 1:
            continue
        if consumer.where.module != model_info.layers[weight]:
            continue  # used outside of its module: no module call whose input could be selected
        if bool((consumer.source < 0).any()) or not bool(roles["scale"][consumer.source].all()):
            continue
        if not bool(in_stream[roots[consumer.source]].all()) or _scale_block(log, consumer) is None:
            continue
        other = model_info.used_elsewhere.get(consumer.where.module, [])
        if any(bool(torch.isin(consumer.source, facet).any()) for facet in other):
            continue  # the module uses its whole input
        if bool(added[consumer.source].any()):
            continue  # this BN is a part of the stream
        out = consumer.output
        if out is not None and _other_stream(roots, in_stream, consumer.source, out):
            continue  # a projection shortcut: it consumes the whole stream
        found.append(consumer)
    return found


def _feeds_a_sum(log: TraceLog) -> Tensor:
    """label -> whether it is added to something, with no BN or weights in between."""
    near = components(log.total, [t for t in log.ties if t.kind not in ("norm", "consume")])
    hit = torch.zeros(log.total, dtype=torch.bool)
    for tie in log.ties:
        if tie.kind == "add":
            hit[near[tie.a]] = True
            hit[near[tie.b]] = True
    return hit[near]


def _other_stream(roots: Tensor, in_stream: Tensor, source: Tensor, out: Tensor) -> bool:
    """Does the consumer produce channels of another residual stream?"""
    feeds = bool(in_stream[roots[out]].any())
    return feeds and not bool((roots[out[0]] == roots[source]).any())


def distinct_consumers(log: TraceLog) -> list[Consumer]:
    """Every consumer once, even if both passes recorded it."""
    seen: dict[tuple[str, int, int], list[Consumer]] = {}
    for consumer in log.consumers:
        same = seen.setdefault(
            (consumer.weight, int(consumer.source[0]), consumer.source.numel()), []
        )
        if not any(_alike(consumer, other) for other in same):
            same.append(consumer)
    return [consumer for same in seen.values() for consumer in same]


def _alike(a: Consumer, b: Consumer) -> bool:
    return torch.equal(a.source, b.source) and torch.equal(a.target, b.target)


def mark(source: Tensor, target: Tensor) -> tuple[int, int, int]:
    """A key for a consumer: its first channel, the weight entry that multiplies it, the length."""
    return int(source[0]), int(target[0]), source.numel()


def _scale_block(log: TraceLog, consumer: Consumer) -> LabelBlock | None:
    block = log.block_at(int(consumer.source.min()))
    return block if int(consumer.source.max()) < block.start + block.size else None


def add_selections(
    label_index: LabelIndex,
    log: TraceLog,
    model_info: TracedModel,
    groups: list[Group],
    selected: list[Consumer],
    whole_norms: frozenset[str],
) -> tuple[LabelIndex, list[Group]]:
    """Add a selection group for every selected consumer.

    `whole_norms`: the norms whose output must not be narrowed, because the forward needs its width.
    """
    if not selected:
        return label_index, groups
    group_of, channel_of = label_index.group_of.clone(), label_index.channel_of.clone()
    selections: list[InputSelection] = []
    used = _used_otherwise(log, selected)
    rearranged = torch.zeros(log.total, dtype=torch.bool)
    for labels in model_info.rearranged:
        rearranged[labels[labels >= 0]] = True
    per_norm: dict[str, int] = {}
    for consumer in selected:
        block = _scale_block(log, consumer)
        assert block is not None
        per_norm[block.tensor] = per_norm.get(block.tensor, 0) + 1
    for consumer in selected:
        block = _scale_block(log, consumer)
        assert block is not None
        norm, layer = block.tensor.rpartition(".")[0], model_info.layers[consumer.weight]
        channels, inverse = consumer.source.unique(return_inverse=True)
        order = inverse.argsort(stable=True)
        weight_block = log.block_at(int(consumer.target[0]))
        entries = consumer.target[order] - weight_block.start
        group_of[consumer.target] = len(groups)
        channel_of[consumer.target] = inverse
        selections.append(
            InputSelection(
                layer,
                norm,
                consumer.target,
                consumer.source,
                norm not in whole_norms and not bool(used[consumer.source].any()),
                bool(rearranged[consumer.source].any()),
            )
        )
        groups.append(
            Group(
                name=norm if per_norm[block.tensor] == 1 else f"{norm}>{layer}",
                size=channels.numel(),
                kind="selection",
                producers=(),
                scales=(Slot(block.tensor, 0, tuple((channels - block.start).tolist())),),
                consumers=(Slot(consumer.weight, weight_block.dim, tuple(entries.tolist())),),
            )
        )
    return replace(
        label_index, group_of=group_of, channel_of=channel_of, selections=tuple(selections)
    ), groups


def _used_otherwise(log: TraceLog, selected: list[Consumer]) -> Tensor:
    """label -> whether the output of its norm is needed in full, not only by the selections.

    It is if a channel is kept, added, tied to another tensor (a depthwise convolution, a PReLU),
    or consumed elsewhere, or if the norm has statistics over several channels (GroupNorm).
    """
    used = torch.zeros(log.total + 1, dtype=torch.bool)  # one more for labels below 0
    chosen = {mark(consumer.source, consumer.target) for consumer in selected}
    for consumer in log.consumers:
        if mark(consumer.source, consumer.target) not in chosen:
            used[consumer.source] = True
    norm_of = _norm_entries(log, selected)
    for tie in log.ties:
        if tie.kind == "add" or (tie.kind == "norm" and "batch_norm" not in tie.where.op):
            used[tie.a] = True
            used[tie.b] = True
        elif tie.kind == "same":
            apart = norm_of[tie.a] != norm_of[tie.b]
            used[tie.a[apart]] = True
            used[tie.b[apart]] = True
    for keep in log.keep_reasons:
        used[keep.labels] = True
    return used[:-1]


def _norm_entries(log: TraceLog, selected: list[Consumer]) -> Tensor:
    """label -> a number that is equal for the entries of one channel in the tensors of one norm.

    0 for labels that belong to no norm of a selection.
    """
    names = {log.block_at(int(c.source.min())).tensor.rpartition(".")[0] for c in selected}
    firsts: dict[str, int] = {}
    numbers = torch.zeros(log.total, dtype=torch.long)
    for block in log.blocks:
        norm, _, tensor = block.tensor.rpartition(".")
        if norm in names and tensor in NORM_TENSORS:
            first = firsts.setdefault(norm, block.start + 1)
            own = torch.arange(first, first + block.size)
            numbers[block.start : block.start + block.size] = own
    return numbers
