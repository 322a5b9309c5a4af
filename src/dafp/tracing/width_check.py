"""Checks the groups: runs skeletons of other widths, and reports operators that do not fit them.

trial.py is one such run; width_fixes.py decides what to do about a mismatch.
"""

import heapq
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..graph.channel_graph import ChannelGraph
from ..graph.label_index import LabelIndex
from ..graph.slicing import Make, slice_model, slicing_for
from ..graph.trace_log import RecordedCall
from ..network.calling import FORWARD_ERRORS, quiet
from ..network.decisions import Decisions, Replay
from ..network.skeleton import TensorKind
from .call import OperatorRule
from .forward_pass import label_tensors, run_pass
from .groups import Grouping
from .run_network import NetworkRun
from .trial import TrialMode, TrialTracker, WidthMismatch
from .width_fixes import WidthFixes

FEW = 3  # channels of a group that is widened in one of both orders only
_PARTS = ("split", "split_with_sizes", "slice", "unbind", "select", "index", "index_select")


def check_widths(
    model: nn.Module,
    network_run: NetworkRun,
    grouping: Grouping,
    graph: ChannelGraph,
    fixes: WidthFixes,
    module_rules: Mapping[Any, OperatorRule],
) -> bool:
    """Run skeletons of other widths. True if every operator gave the expected labels.

    If not, `fixes` chooses the next fix for each mismatch.
    """
    if not graph.groups:
        return True
    free, log = graph.label_index.group_of >= 0, network_run.mode.tracker.log
    both = any(_takes_part(recorded, free) for one in network_run.passes for recorded in one.calls)
    both = both or any(group.size <= FEW for group in graph.groups)
    for rising in (True, False) if both else (True,):
        kept = _other_widths(graph, rising)
        for run, mismatches in _mismatches(
            model, network_run, grouping, graph, kept, fixes, module_rules
        ):
            if mismatches:
                calls = next(one.calls for one in network_run.passes if one.name == run)
                fixes.try_all(model, log, mismatches, run, calls, grouping)
                return False
    stuck = _norms_that_stay_wide(model, network_run, graph)
    fixes.whole_norms |= stuck
    return not stuck


def _norms_that_stay_wide(
    model: nn.Module, network_run: NetworkRun, graph: ChannelGraph
) -> set[str]:
    """Norms whose selections cannot narrow them: the forward needs the width of their output."""
    selections = [s for s in graph.label_index.selections if s.exclusive and s.rearranged]
    norms = {selection.norm for selection in selections}

    def runs(narrow: set[str]) -> bool:
        kept = torch.ones_like(graph.label_index.group_of, dtype=torch.bool)
        for selection in selections:
            if selection.norm in narrow:
                gone = selection.source == selection.source.min()
                kept[selection.target[gone]] = False
        slicing = slicing_for(model, graph.label_index, kept)
        maker = _tensor_maker(network_run.mode.tensor_kind)
        narrower = slice_model(network_run.skeleton, slicing, maker)
        mode = network_run.mode
        mode.paused, mode.runner = True, Decisions()
        try:
            with quiet():
                for one in network_run.passes:
                    run_pass(mode, narrower.train(one.training), one.example, {})
        except FORWARD_ERRORS:
            return False
        finally:
            mode.paused = False
        return True

    if not norms or runs(norms):
        return set()
    return {norm for norm in norms if not runs({norm})} or norms


def _mismatches(
    model: nn.Module,
    network_run: NetworkRun,
    grouping: Grouping,
    graph: ChannelGraph,
    kept: Tensor,
    fixes: WidthFixes,
    module_rules: Mapping[Any, OperatorRule],
) -> Iterator[tuple[str, list[WidthMismatch]]]:
    """Run the skeleton at these widths; yield the name of each pass and its mismatches."""
    label_index, mode = graph.label_index, network_run.mode
    slicing = slicing_for(model, label_index, kept)
    wider = slice_model(network_run.skeleton, slicing, _tensor_maker(mode.tensor_kind))

    stays = label_index.kept_labels(kept)
    labels = {(b.tensor, b.dim): ids for b, ids in zip(label_index.blocks, stays, strict=True)}

    def label(name: str, axis: int) -> Tensor | None:
        return labels.get((name, axis))

    for one in network_run.passes:
        even = frozenset(n for run, n in fixes.chosen if run == one.name)
        tracker = TrialTracker(mode.tracker.log, grouping.roots, label_index, kept)
        trial = TrialMode(mode, tracker, one.calls, one.constants, even)
        trial.runner = Replay(one.decisions.taken)
        label_tensors(trial.tracker, wider, label)
        wider.train(one.training)
        try:
            with quiet():
                run_pass(trial, wider, one.example, module_rules)
        except FORWARD_ERRORS:
            trial.forward_failed()
        yield one.name, trial.mismatches


def _takes_part(recorded: RecordedCall, free: Tensor) -> bool:
    """Does this operator take a part of an axis of which channels may be removed?"""
    if recorded.where.op not in _PARTS:
        return False
    if not any(bool(free[f[f >= 0]].any()) for f in recorded.inputs):
        return False
    whole = max((f.numel() for f in recorded.inputs), default=0)
    return any(
        f.numel() < whole for info in recorded.outputs if info is not None for f in info.facets
    )


def _tensor_maker(tensor_kind: TensorKind) -> Make | None:
    """The `make` of `slice_model` for tensors without data: sliced ones are new, others shared."""
    empty = tensor_kind.empty
    if empty is None:
        return None

    def make(tensor: Tensor, axes: dict[int, Tensor]) -> Tensor:
        shape = tuple(axes[d].numel() if d in axes else s for d, s in enumerate(tensor.shape))
        return empty(tensor, shape) if axes else tensor

    return make


def _other_widths(graph: ChannelGraph, rising: bool) -> Tensor:
    """label -> how often it is kept: repeated channels make groups wider, by different amounts.

    Wider, not narrower, because torch omits a slice that takes a whole axis, and an axis of one
    channel cannot be told from a broadcast one. The parts of a split may fit by chance if the first
    one is wider, so both orders are needed (`rising`).
    """
    generator = torch.Generator().manual_seed(0)
    times = []
    for number, group in enumerate(graph.groups):
        own = torch.ones(group.size, dtype=torch.long)
        if group.kind == "filter" and group.size > 1:
            much, little = group.size // 2, 1 if group.size > FEW else 0
            extra = much if (number % 2 == 0) == rising else little
            own[torch.randperm(group.size, generator=generator)[:extra]] = 2
        times.append(own)
    return _evened(graph.label_index, times)


def _evened(label_index: LabelIndex, times: list[Tensor]) -> Tensor:
    """Repeat channels until the parts of every even split have equal widths."""
    kept = label_index.kept(times)
    for _ in range(2 * len(label_index.even_splits) + 4):
        even = True
        for even_split in label_index.even_splits:
            counts = [int(kept[part].sum()) for part in even_split.parts]
            for part, count in zip(even_split.parts, counts, strict=True):
                if count < max(counts) and _stretch(label_index, times, part, max(counts) - count):
                    even, kept = False, label_index.kept(times)
        if even:
            break
    return kept


def _stretch(label_index: LabelIndex, times: list[Tensor], part: Tensor, need: int) -> bool:
    """Widen a part by `need`: repeat the least repeated channels. True if it changed.

    A part whose channels have more entries each, such as heads, gets wider than that.
    """
    part = part[label_index.group_of[part] >= 0]
    places = torch.stack([label_index.group_of[part], label_index.channel_of[part]])
    channels, entries = places.unique(dim=1, return_counts=True)
    ways = [
        (int(times[group][channel]), group, channel, step)
        for group, channel, step in zip(*channels.tolist(), entries.tolist(), strict=True)
    ]
    heapq.heapify(ways)
    need = max(need, min((way[-1] for way in ways), default=0))
    changed = False
    while need > 0 and ways:
        often, group, channel, step = heapq.heappop(ways)
        if step <= need:
            times[group][channel] += 1
            need -= step
            changed = True
            heapq.heappush(ways, (often + 1, group, channel, step))
    return changed
