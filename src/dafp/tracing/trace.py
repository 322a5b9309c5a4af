"""The public entry: model and example in, channel graph out."""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..carving import Make, carve, cut_for, selects
from ..copying import modules_of, tensors_of
from ..errors import TraceError
from ..fingerprint import fingerprint
from ..graph import ChannelGraph, Count, Structure
from ..record import Keep, Record, Site, Where
from ..running import (
    FORWARD_ERRORS,
    REAL,
    Material,
    batch_of,
    describe,
    example_for,
    materials,
    quiet,
    same_chance,
    skeleton_of,
    uncollected,
)
from .call import Call, Rule
from .checks import check_example, check_traceable
from .flow import Flow
from .grouping import Grouping, group_channels
from .ledger import Ledger
from .ops import RULES, rule_without_entry
from .passes import label_tensors, name_modules, new_labels, note_bare_norms, run_pass
from .residual import Network
from .trial import Misfit, TrialFlow, TrialLedger
from .widths import Answers

MAX_TRIALS = 24
_MIXES = ("mean", "sum", "amax", "amin", "max", "min", "cat", "_softmax")
_CUTTING = ("split", "split_with_sizes", "slice", "unbind", "select", "index", "index_select")


@dataclass(frozen=True)
class Pass:
    """One way to run the network, and the operators it went through."""

    name: str
    training: bool
    example: Any
    sites: list[Site]
    constants: list[tuple[float, ...]]  # that became tensors


@dataclass(frozen=True)
class Observed:
    """A skeleton, the flow that watched it, and the passes it made."""

    skeleton: nn.Module
    flow: Flow
    passes: list[Pass]
    counts: tuple[Count, ...]  # numbers of modules that are known to count channels


def trace(
    model: nn.Module,
    example: Any,
    residual: str = "keep",
    keep: Sequence[str] | None = (),
    rules: Mapping[Any, Rule] | None = None,
) -> ChannelGraph:
    """Find what can be removed from `model`, and what has to go together.

    `example` is what the model takes: tensor → model(x), tuple → model(*x), dict → model(**x). A
    copy of the model without numbers runs on it, in eval and in train mode and in trials with
    other widths; the model is not touched.

    residual: "keep" leaves residual streams whole (their readers may select channels), "couple"
        prunes them jointly.
    keep: names or patterns of layers whose channels stay.
    rules: {ATen operator or module class: function(call)}, for layers that tracing does not know.
    """
    check_traceable(model)
    check_example(example)
    if residual not in ("keep", "couple"):
        raise TraceError(f"residual={residual!r} is not known; choose 'keep' or 'couple'")
    keep = (keep,) if isinstance(keep, str) else tuple(keep or ())
    if not all(isinstance(name, str) for name in keep):
        raise TraceError(f"keep={keep!r}: give names or patterns of layers, as texts")
    own = {key: _guarded(key, rule) for key, rule in (rules or {}).items()}
    module_rules = {k: r for k, r in own.items() if isinstance(k, type)}
    op_rules = {**RULES, **{k: r for k, r in own.items() if not isinstance(k, type)}}
    with torch.inference_mode(False), uncollected():
        return _trace(model, example, residual, keep, op_rules, module_rules)


def _guarded(key: Any, rule: Rule) -> Rule:
    """The user's rule; where it fails, it is the rule that is said to have failed."""

    def guarded(call: Call) -> None:
        try:
            rule(call)
        except FORWARD_ERRORS as error:
            if isinstance(call.ledger, TrialLedger):
                raise  # in a narrower network it may
            raise TraceError(
                f"the rule for {getattr(key, '__name__', key)} failed in "
                f"{call.where.module!r}: {type(error).__name__}: {error}"
            ) from error

    return guarded


def _trace(
    model: nn.Module, example: Any, residual: str, keep: Sequence[str],
    op_rules: Mapping[Any, Rule], module_rules: Mapping[Any, Rule],
) -> ChannelGraph:  # fmt: skip
    observed = _observe(model, example, op_rules, module_rules)
    selecting = observed.passes if residual == "keep" else []
    network, mark = _network(model, example, selecting), fingerprint(model)
    answers = Answers(observed.counts)
    for _ in range(MAX_TRIALS):
        grouping = group_channels(
            observed.flow.ledger.record, network, residual=residual, keep=keep,
            counts=answers.counts, balances=answers.balances,
        )  # fmt: skip
        notes = tuple(observed.flow.ledger.record.notes)
        if not grouping.groups and not grouping.kept:
            notes += ("no layer with weights was seen; does the forward run in inference_mode?",)
        graph = ChannelGraph(
            grouping.groups, grouping.kept, grouping.structure, mark, example, notes
        )
        if _try_out(model, observed, grouping, graph, answers, module_rules):
            return graph
    note = f"after {MAX_TRIALS} trials a narrower copy still does not run; prune may refuse"
    return replace(graph, notes=(*graph.notes, note))


def _observe(
    model: nn.Module, example: Any, op_rules: Mapping[Any, Rule], module_rules: Mapping[Any, Rule]
) -> Observed:
    """Run the network without numbers; if it needs them, with the example's."""
    failed: list[str] = []
    for material in materials():
        try:
            with quiet(), same_chance(model):
                observed = _run_both(model, example, op_rules, module_rules, material)
        except FORWARD_ERRORS as error:
            failed.append(_first(error))
            if material is REAL:
                raise TraceError(
                    f"{type(model).__name__} does not run on the example ({describe(example)}): "
                    f"{type(error).__name__}: {error}. The example must be what the model takes: "
                    "a tensor, a tuple of arguments or a dict of keyword arguments"
                ) from error
            continue
        if material is REAL:
            observed.flow.ledger.record.notes.append(
                f"traced with real numbers, because the forward looks at values ({failed[-1]}); "
                "a branch that depends on data is traced as the example takes it"
            )
            _keep_for_unreached(observed, tensors_of(model))
        return observed
    raise AssertionError("unreachable")


def _keep_for_unreached(observed: Observed, tensors: Mapping[str, Tensor]) -> None:
    """A branch that other data take may read any channels of a width that fits its layers."""
    record = observed.flow.ledger.record
    unreached = {
        name: tensor.shape[:2]
        for name, tensor in tensors.items()
        if isinstance(tensor, nn.Parameter) and tensor.dim() and name not in observed.flow.reached
    }
    for block in record.blocks:
        fits = [n for n, sizes in unreached.items() if any(s % block.size == 0 for s in sizes)]
        if fits and block.tensor not in unreached:
            layer = fits[0].rpartition(".")[0]
            labels = torch.arange(block.start, block.start + block.size)
            reason = f"the example does not reach {layer!r}, which may read it for other data"
            record.keeps.append(Keep(labels, Where("forward", layer), reason))


def _run_both(
    model: nn.Module, example: Any, op_rules: Mapping[Any, Rule], module_rules: Mapping[Any, Rule],
    material: Material,
) -> Observed:  # fmt: skip
    """One pass in eval mode and one in train mode, into one record."""
    record = Record()
    skeleton = _skeleton(model, material)
    flow = Flow(Ledger(record), op_rules, rule_without_entry, material, running=[])
    name_modules(skeleton, flow.running)
    widths = note_bare_norms(flow, skeleton)
    label_tensors(flow.ledger, skeleton, new_labels(record, skeleton))
    skeleton.eval()
    inputs = example_for(example, material)
    run_pass(flow, skeleton, inputs, module_rules)
    passes = [Pass("eval", False, inputs, flow.sites, flow.constants)]
    skeleton.train()
    flow.ledger.count_macs = False
    refused = None
    for times in (1, 2):  # BN refuses a single value per channel
        flow.sites, flow.constants = [], []
        inputs = example_for(example, material, times)
        try:
            run_pass(flow, skeleton, inputs, module_rules)
        except FORWARD_ERRORS as error:
            refused = error
            continue
        passes.append(Pass("train", True, inputs, flow.sites, flow.constants))
        break
    else:
        record.notes.append(
            f"does not run in train mode ({_first(refused)}); traced in eval mode only"
        )
    if len(passes) == 2:
        ways = [[site.where for site in one.sites if _minds_width(site)] for one in passes]
        passes = passes[:1] if ways[0] == ways[1] else passes
    counts = tuple(Count(name, "num_features", None, labels) for name, labels in widths.items())
    return Observed(skeleton, flow, passes, counts)


def _skeleton(model: nn.Module, material: Material) -> nn.Module:
    try:
        return skeleton_of(model, material)
    except FORWARD_ERRORS as error:
        raise TraceError(
            f"{type(model).__name__} cannot be copied: {type(error).__name__}: {error}. Tracing "
            "and pruning work on copies: take off the model what copy.deepcopy refuses"
        ) from error


def _minds_width(site: Site) -> bool:
    """Not elementwise, a norm or chance: those fit any width, and differ between the passes."""
    name = site.where.op
    chance = "dropout" in name or "bernoulli" in name or name.endswith("_like")
    return not (torch.Tag.pointwise in site.op.tags or "norm" in name or chance)


def _first(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def _network(model: nn.Module, example: Any, passes: Sequence[Pass]) -> Network:
    tensors = tensors_of(model)
    layers = (nn.modules.conv._ConvNd, nn.Linear)
    return Network(
        {name: tuple(t.shape) for name, t in tensors.items()},
        frozenset(name for name, t in tensors.items() if isinstance(t, nn.Parameter)),
        {
            f"{name}.weight": name
            for name, module in modules_of(model)
            if isinstance(module, layers) and (selects(module) or not hasattr(module, "index"))
        },
        batch_of(example),
        _used_otherwise(passes),
    )


def _used_otherwise(passes: Sequence[Pass]) -> dict[str, list[Tensor]]:
    """module -> channels that it uses for something else than its weighted sum."""
    found: dict[str, list[Tensor]] = {}
    for site in (site for one in passes for site in one.sites):
        if torch.Tag.pointwise in site.op.tags or site.where.op in _MIXES:
            found.setdefault(site.where.module, []).extend(site.inputs)
    return found


def _try_out(
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
