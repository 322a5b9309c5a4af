"""Rehearses pruning: runs networks of other widths, and asks for answers where one does not fit."""

import heapq
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..graph.channel_graph import ChannelGraph
from ..graph.label_index import Structure
from ..graph.slicing import Make, carve, cut_for
from ..graph.trace_log import Site
from ..network.calling import FORWARD_ERRORS, quiet
from ..network.skeleton import Material
from .call import Rule
from .groups import Grouping
from .label_pass import label_tensors, run_pass
from .run_network import Observed
from .trial import Misfit, TrialFlow, TrialLedger
from .width_answers import Answers

_CUTTING = ("split", "split_with_sizes", "slice", "unbind", "select", "index", "index_select")


def rehearse(
    model: nn.Module, observed: Observed, grouping: Grouping, graph: ChannelGraph,
    answers: Answers, module_rules: Mapping[Any, Rule],
) -> bool:  # fmt: skip
    """Run narrower skeletons; True if they did everything as they should."""
    if not graph.groups:
        return True
    splits = any(_cuts_channels(site) for one in observed.passes for site in one.sites)
    for rising in (True, False) if splits else (True,):
        alive = _other_widths(graph, rising)
        for run, misfits in _misfits(
            model, observed, grouping, graph, alive, answers, module_rules
        ):
            for misfit in misfits:
                sites = next(one.sites for one in observed.passes if one.name == run)
                answers.answer(model, observed.flow.ledger.record, misfit, run, sites)
            if misfits:
                return False
    return True


def _misfits(
    model: nn.Module, observed: Observed, grouping: Grouping, graph: ChannelGraph, alive: Tensor,
    answers: Answers, module_rules: Mapping[Any, Rule],
) -> Iterator[tuple[str, list[Misfit]]]:  # fmt: skip
    """Run the skeleton with the living channels only; what does not fit, for each pass."""
    structure, flow = graph.structure, observed.flow
    cut = cut_for(model, structure, alive)
    narrow = carve(observed.skeleton, cut, _narrow(flow.material))

    stays = structure.remaining(alive)
    labels = {(b.tensor, b.dim): ids for b, ids in zip(structure.blocks, stays, strict=True)}

    def label(name: str, axis: int) -> Tensor | None:
        return labels.get((name, axis))

    for one in observed.passes:
        even = frozenset(n for run, n in answers.given if run == one.name)
        ledger = TrialLedger(flow.ledger.record, grouping.roots, structure, alive)
        trial = TrialFlow(flow, ledger, one.sites, one.constants, even)
        label_tensors(trial.ledger, narrow, label)
        narrow.train(one.training)
        try:
            with quiet():
                run_pass(trial, narrow, one.example, module_rules)
        except FORWARD_ERRORS:
            trial.give_up()
        yield one.name, trial.misfits


def _cuts_channels(site: Site) -> bool:
    """Does this operator cut a channel axis into parts?"""
    if site.where.op not in _CUTTING:
        return False
    whole = max((f.numel() for f in site.inputs), default=0)
    return any(f.numel() < whole for tag in site.outputs if tag is not None for f in tag.facets)


def _narrow(material: Material) -> Make | None:
    """Tensors of a narrower skeleton: empty ones of the new shape, others shared."""
    empty = material.empty
    if empty is None:
        return None

    def make(tensor: Tensor, axes: dict[int, Tensor]) -> Tensor:
        shape = tuple(axes[d].numel() if d in axes else s for d, s in enumerate(tensor.shape))
        return empty(tensor, shape) if axes else tensor

    return make


def _other_widths(graph: ChannelGraph, rising: bool) -> Tensor:
    """label -> how often it stays: every group gets wider, neighbours by different amounts.

    Wider, because torch leaves out a slice that takes a whole axis, and an axis with one channel
    left cannot be told from a broadcast one. Parts of a slice may fit by chance when the first is
    the wider, so both orders are needed.
    """
    generator = torch.Generator().manual_seed(0)
    times = []
    for number, group in enumerate(graph.groups):
        own = torch.ones(group.size, dtype=torch.long)
        if group.kind == "filter" and group.size > 1:
            much, little = group.size // 2, 1 if group.size > 3 else 0
            extra = much if (number % 2 == 0) == rising else little
            own[torch.randperm(group.size, generator=generator)[:extra]] = 2
        times.append(own)
    return _evened(graph.structure, times)


def _evened(structure: Structure, times: list[Tensor]) -> Tensor:
    """Let channels stay more often until parts that must be even are."""
    alive = structure.alive(times)
    for _ in range(len(structure.balances) + 1):
        even = True
        for balance in structure.balances:
            counts = [int(alive[part].sum()) for part in balance.parts]
            for part, count in zip(balance.parts, counts, strict=True):
                if count < max(counts) and _stretch(structure, times, part, max(counts) - count):
                    even, alive = False, structure.alive(times)
        if even:
            break
    return alive


def _stretch(structure: Structure, times: list[Tensor], part: Tensor, need: int) -> bool:
    """Add `need` to the width of a part by repeating the channels that repeat least."""
    part = part[structure.group_of[part] >= 0]
    places = torch.stack([structure.group_of[part], structure.channel_of[part]])
    channels, entries = places.unique(dim=1, return_counts=True)
    ways = [
        (int(times[group][channel]), group, channel, step)
        for group, channel, step in zip(*channels.tolist(), entries.tolist(), strict=True)
    ]
    heapq.heapify(ways)
    changed = False
    while need > 0 and ways:
        often, group, channel, step = heapq.heappop(ways)
        if step <= need:
            times[group][channel] += 1
            need -= step
            changed = True
            heapq.heappush(ways, (often + 1, group, channel, step))
    return changed
