"""`keep_groups`: the same channel graph, in which some groups are kept whole."""

from collections.abc import Mapping
from dataclasses import replace

import torch

from .channel_graph import ChannelGraph
from .group import Group, Kept
from .label_index import LabelIndex

_SPLIT = "must be as wide as channels that are kept"


def keep_groups(graph: ChannelGraph, reasons: Mapping[str, str]) -> ChannelGraph:
    """A graph without these groups (name -> reason); each of them is an entry of `kept`.

    Groups that an even split ties to their widths are kept as well.
    """
    numbers = {group.name: number for number, group in enumerate(graph.groups)}
    why = {numbers[graph[name].name]: reason for name, reason in reasons.items()}
    for number in _as_wide_as(set(why), graph.label_index):
        why.setdefault(number, _SPLIT)
    stays = [number for number in range(len(graph.groups)) if number not in why]
    new_number = torch.full((len(graph.groups) + 1,), -1)  # the last one: labels of no group
    new_number[stays] = torch.arange(len(stays))
    group_of = new_number[graph.label_index.group_of]
    label_index = replace(
        graph.label_index,
        group_of=group_of,
        channel_of=graph.label_index.channel_of.masked_fill(group_of < 0, 0),
    )
    kept = tuple(_kept(graph.groups[number], why[number]) for number in sorted(why))
    groups = tuple(graph.groups[number] for number in stays)
    return replace(graph, groups=groups, kept=(*graph.kept, *kept), label_index=label_index)


def _as_wide_as(numbers: set[int], label_index: LabelIndex) -> set[int]:
    """These groups, and those that an even split ties to a part that is now kept whole."""
    while True:
        found = set(numbers)
        for even_split in label_index.even_splits:
            parts = [set(label_index.group_of[part].tolist()) for part in even_split.parts]
            if any(part <= found | {-1} for part in parts):
                found |= set[int]().union(*parts) - {-1}
        if found == numbers:
            return found
        numbers = found


def _kept(group: Group, reason: str) -> Kept:
    filters = sum(len(slot.index) for slot in group.producers)
    size = filters if group.kind == "filter" else group.size
    return Kept(group.name, size, "prune", "", reason, group.kind)
