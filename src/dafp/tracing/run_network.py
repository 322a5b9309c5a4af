"""Runs the network as it is, without numbers where it can: what flowed where, for grouping."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import TraceError
from ..graph.label_index import Count
from ..graph.trace_log import Keep, Record, Site, Where
from ..network.calling import FORWARD_ERRORS, describe, quiet, same_chance
from ..network.named_tensors import tensors_of
from ..network.skeleton import REAL, Material, example_for, materials, skeleton_of
from .call import Rule
from .dispatch import Flow
from .label_pass import label_tensors, name_modules, new_labels, note_bare_norms, run_pass
from .rules.table import rule_without_entry
from .tags import Ledger


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


def observe(
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
