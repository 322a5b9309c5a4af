"""Runs the network in eval and in train mode, and records what happens to channel labels.

The network runs on tensors without data or, if its forward needs values, on copies of the real
tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import TraceError
from ..graph.label_index import WidthAttribute
from ..graph.trace_log import KeepReason, Location, RecordedCall, TraceLog
from ..network.calling import FORWARD_ERRORS, describe, fixed_seed, quiet
from ..network.decisions import DecisionPath, Decisions
from ..network.model_copy import deep_copy
from ..network.named_tensors import tensors_of
from ..network.skeleton import REAL_TENSORS, TensorKind, example_for, skeleton_of, tensor_kinds
from .call import OperatorRule
from .dispatch import LabelMode
from .forward_pass import label_tensors, name_modules, new_labels, note_bare_norms, run_pass
from .label_tracker import LabelTracker
from .rules.table import rule_without_entry


@dataclass(frozen=True)
class ForwardPass:
    """One forward pass of the network, and its operator calls."""

    name: str
    training: bool
    example: Any
    calls: list[RecordedCall]
    constants: list[tuple[float, ...]]  # values of new tensors without labels
    decisions: Decisions  # only with real data


@dataclass(frozen=True)
class NetworkRun:
    """A skeleton, the mode under which it ran, and its passes."""

    skeleton: nn.Module
    mode: LabelMode
    passes: list[ForwardPass]
    width_attributes: tuple[WidthAttribute, ...]  # attributes known to be widths

    @property
    def path(self) -> DecisionPath | None:
        """The decisions of the eval pass; None if it needed no data or decided nothing."""
        taken = tuple(self.passes[0].decisions.taken)
        return DecisionPath(self.passes[0].example, taken) if taken else None


def run_network(
    model: nn.Module,
    example: Any,
    op_rules: Mapping[Any, OperatorRule],
    module_rules: Mapping[Any, OperatorRule],
) -> NetworkRun:
    """Run the network on meta tensors; if that fails, on fake tensors, and then on real ones."""
    failed: list[str] = []
    for tensor_kind in tensor_kinds():
        try:
            with quiet(), fixed_seed(model):
                network_run = _run_both(model, example, op_rules, module_rules, tensor_kind)
        except FORWARD_ERRORS as error:
            failed.append(_first(error))
            if tensor_kind is REAL_TENSORS:
                raise TraceError(
                    f"{type(model).__name__} does not run on the example ({describe(example)}): "
                    f"{type(error).__name__}: {error}. The example must be what the model takes: "
                    "a tensor, a tuple of arguments or a dict of keyword arguments"
                ) from error
            continue
        if tensor_kind is REAL_TENSORS:
            network_run.mode.tracker.log.notes.append(
                f"traced with real data, because the forward depends on values ({failed[-1]}); "
                "a branch that depends on data is traced as the example takes it"
            )
            _keep_for_unreached(network_run, tensors_of(model))
        return network_run
    raise AssertionError("unreachable")


def _keep_for_unreached(network_run: NetworkRun, tensors: Mapping[str, Tensor]) -> None:
    """Keep channels that layers in a branch not taken by the example may consume."""
    log = network_run.mode.tracker.log
    unreached = {
        name: tensor.shape[:2]
        for name, tensor in tensors.items()
        if isinstance(tensor, nn.Parameter)
        and tensor.dim()
        and name not in network_run.mode.reached
    }
    for block in log.blocks:
        fits = [n for n, sizes in unreached.items() if any(s % block.size == 0 for s in sizes)]
        if fits and block.tensor not in unreached:
            layer = fits[0].rpartition(".")[0]
            labels = torch.arange(block.start, block.start + block.size)
            reason = f"the example does not reach {layer!r}, which may consume it for other data"
            log.keep_reasons.append(KeepReason(labels, Location("forward", layer), reason))


def _run_both(
    model: nn.Module,
    example: Any,
    op_rules: Mapping[Any, OperatorRule],
    module_rules: Mapping[Any, OperatorRule],
    tensor_kind: TensorKind,
) -> NetworkRun:
    """Run one pass in eval mode and one in train mode, both recorded in one log."""
    log = TraceLog()
    skeleton = _skeleton(model, tensor_kind)
    mode = LabelMode(LabelTracker(log), op_rules, rule_without_entry, tensor_kind, running=[])
    name_modules(skeleton, mode.running)
    widths = note_bare_norms(mode, skeleton)
    label_tensors(mode.tracker, skeleton, new_labels(log, skeleton))
    # a forward that reads values may store results: trials start from the same state as this run
    reads = tensor_kind is REAL_TENSORS or tensor_kind.constants > 0
    unused = deep_copy(skeleton) if reads else skeleton
    skeleton.eval()
    inputs = example_for(example, tensor_kind)
    mode.runner = decisions = Decisions()
    run_pass(mode, skeleton, inputs, module_rules)
    passes = [ForwardPass("eval", False, inputs, mode.calls, mode.constants, decisions)]
    skeleton.train()
    mode.tracker.count_macs = False
    refused = None
    for times in (1, 2):  # BN refuses a single value per channel
        mode.calls, mode.constants = [], []
        mode.runner = decisions = Decisions()
        inputs = example_for(example, tensor_kind, times)
        try:
            run_pass(mode, skeleton, inputs, module_rules)
        except FORWARD_ERRORS as error:
            refused = error
            continue
        passes.append(ForwardPass("train", True, inputs, mode.calls, mode.constants, decisions))
        break
    else:
        log.notes.append(
            f"does not run in train mode ({_first(refused)}); traced in eval mode only. "
            "If train mode needs more arguments, such as the targets of a detector, include them "
            "in the example: (images, targets)"
        )
    if len(passes) == 2:
        ways = [
            [recorded.where for recorded in one.calls if _minds_width(recorded)] for one in passes
        ]
        passes = passes[:1] if ways[0] == ways[1] else passes
    counts = [WidthAttribute(name, "num_features", None, labels) for name, labels in widths.items()]
    for use in log.norms:
        shape = getattr(skeleton.get_submodule(use.module), "normalized_shape", ())
        if len(shape) == 1:
            counts.append(WidthAttribute(use.module, "normalized_shape", 0, use.labels))
    return NetworkRun(unused, mode, passes, tuple(counts))


def _skeleton(model: nn.Module, tensor_kind: TensorKind) -> nn.Module:
    try:
        return skeleton_of(model, tensor_kind)
    except FORWARD_ERRORS as error:
        raise TraceError(
            f"{type(model).__name__} cannot be copied: {type(error).__name__}: {error}. Tracing "
            "and pruning work on copies: remove from the model what copy.deepcopy cannot copy"
        ) from error


def _minds_width(recorded: RecordedCall) -> bool:
    """Does the operator depend on widths? Elementwise, norm and random operators do not."""
    name = recorded.where.op
    chance = "dropout" in name or "bernoulli" in name or name.endswith("_like")
    return not (torch.Tag.pointwise in recorded.op.tags or "norm" in name or chance)


def _first(error: BaseException | None) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]
