"""`trace`: the algorithm that finds which channels must be removed together, from top to bottom.

1. run_network.py runs a copy of the model in which every channel has a label; the rules of
   rules/table.py record which labels are tied and which must be kept (graph/trace_log.py).
2. groups.py turns ties into groups of channels.
3. width_check.py runs copies of the model with other channel counts. If a copy does not run as
   expected, width_fixes.py adds a constraint, and steps 2 and 3 are repeated.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import TraceError
from ..graph.channel_graph import ChannelGraph
from ..graph.slicing import selects
from ..network.calling import FORWARD_ERRORS, batch_of, no_compilation, no_garbage_collection
from ..network.fingerprint import fingerprint
from ..network.named_tensors import modules_of, tensors_of
from .bake_advice import with_advice
from .call import Call, OperatorRule
from .groups import group_channels
from .preconditions import check_example, check_traceable
from .residual_streams import TracedModel
from .rules.layers import batch_norm, convolution, matmul
from .rules.norms import norm_rules
from .rules.pointwise import image_only, pointwise, reduction, unary
from .rules.recurrent import RECURRENT
from .rules.table import RULES
from .run_network import ForwardPass, run_network
from .trial import TrialTracker
from .width_check import check_widths
from .width_fixes import WidthFixes

MAX_TRIALS = 24  # with all fixes; after these, channels are kept
LAST_TRIALS = 16
# operators that treat every channel alike, whatever their number
_WIDTHS_PASS = frozenset(
    operator
    for operator, rule in RULES.items()
    if rule in (batch_norm, convolution, image_only, matmul, pointwise, reduction, unary)
)
_MIXES = ("mean", "sum", "amax", "amin", "max", "min", "cat", "_softmax")


def trace(
    model: nn.Module,
    example: Any,
    residual: str = "keep",
    keep: Sequence[str] | None = (),
    rules: Mapping[Any, OperatorRule] | None = None,
) -> ChannelGraph:
    """Find the channels that can be removed from a model, and which must be removed together.

    Copies of the model run on the example in eval and in train mode, on tensors without data where
    possible. The model itself is not changed.

    Args:
        model: Any `nn.Module` that runs on the example; not wrapped in DDP and not compiled.
        example: The input of the model: a tensor for `model(x)`, a tuple for `model(*x)`, a dict
            for `model(**x)`. The batch may have one row.
        residual: "keep" does not prune residual streams; a layer that takes a stream as input
            through a BN may select some of its channels. "couple" prunes streams jointly.
        keep: Names or patterns (`"layer1.*"`) of layers whose channels are kept.
        rules: {ATen operator or module class: function of a `Call`}, for operators and layers that
            tracing does not know.

    Returns:
        The channel graph: groups of channels, and what is kept with its reason.

    Raises:
        TraceError: The model cannot be traced; the message says what to pass instead.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
        >>> graph = dafp.trace(model, torch.zeros(1, 3, 8, 8))
        >>> [(group.name, group.size) for group in graph.groups]
        [('0', 4)]
        >>> [(kept.name, kept.reason) for kept in graph.kept]
        [('2', 'an output of the model')]
    """
    check_traceable(model)
    check_example(example)
    if residual not in ("keep", "couple"):
        raise TraceError(f"residual={residual!r} is not known; choose 'keep' or 'couple'")
    keep = (keep,) if isinstance(keep, str) else tuple(keep or ())
    if not all(isinstance(name, str) for name in keep):
        raise TraceError(f"keep={keep!r}: give names or patterns of layers, as strings")
    own = {key: _guarded(key, rule) for key, rule in (rules or {}).items()}
    module_rules = {k: r for k, r in own.items() if isinstance(k, type)}
    op_rules = {**RULES, **{k: r for k, r in own.items() if not isinstance(k, type)}}
    with torch.inference_mode(False), no_garbage_collection(), no_compilation():
        return _trace(model, example, residual, keep, op_rules, module_rules)


def _guarded(key: Any, rule: OperatorRule) -> OperatorRule:
    """Wrap a user's rule: an error in it becomes a TraceError that names the rule."""

    def guarded(call: Call) -> None:
        try:
            rule(call)
        except FORWARD_ERRORS as error:
            if isinstance(call.tracker, TrialTracker):
                raise  # at other widths a rule may fail: the trial reports it
            raise TraceError(
                f"the rule for {getattr(key, '__name__', key)} failed in "
                f"{call.where.module!r}: {type(error).__name__}: {error}"
            ) from error

    return guarded


def _trace(
    model: nn.Module,
    example: Any,
    residual: str,
    keep: Sequence[str],
    op_rules: Mapping[Any, OperatorRule],
    module_rules: Mapping[Any, OperatorRule],
) -> ChannelGraph:
    module_rules = {**RECURRENT, **module_rules}
    if residual == "couple":
        module_rules = {**norm_rules(model), **module_rules}
    network_run = run_network(model, example, op_rules, module_rules)
    log = network_run.mode.tracker.log
    model_info = _model_info(model, example, network_run.passes if residual == "keep" else [])
    fixes = WidthFixes(network_run.width_attributes)
    for number in range(MAX_TRIALS + LAST_TRIALS):
        fixes.patient = number < MAX_TRIALS
        grouping = group_channels(
            log,
            model_info,
            residual=residual,
            keep=keep,
            width_attributes=fixes.width_attributes,
            even_splits=fixes.even_splits,
            whole_norms=frozenset(fixes.whole_norms),
        )
        notes = tuple(log.notes)
        if not grouping.groups and not grouping.kept:
            notes += ("no layer with weights was seen; does the forward run in inference_mode?",)
        graph = ChannelGraph(
            grouping.groups,
            grouping.kept,
            grouping.label_index,
            fingerprint(model),
            example,
            notes,
            network_run.path,
        )
        if check_widths(model, network_run, grouping, graph, fixes, module_rules):
            return with_advice(graph, model)
    note = f"after {number + 1} trials a copy of other widths still does not run; prune may refuse"
    return with_advice(replace(graph, notes=(*graph.notes, note)), model)


def _model_info(model: nn.Module, example: Any, passes: Sequence[ForwardPass]) -> TracedModel:
    tensors = tensors_of(model)
    layers = (nn.modules.conv._ConvNd, nn.Linear)
    return TracedModel(
        {name: tuple(t.shape) for name, t in tensors.items()},
        frozenset(name for name, t in tensors.items() if isinstance(t, nn.Parameter)),
        {
            f"{name}.weight": name
            for name, module in modules_of(model)
            if isinstance(module, layers) and (selects(module) or not hasattr(module, "index"))
        },
        batch_of(example),
        _used_elsewhere(passes),
        tuple(
            labels.reshape(-1)
            for one in passes
            for recorded in one.calls
            if recorded.op.overloadpacket not in _WIDTHS_PASS
            and torch.Tag.pointwise not in recorded.op.tags
            for labels in recorded.inputs
        ),
    )


def _used_elsewhere(passes: Sequence[ForwardPass]) -> dict[str, list[Tensor]]:
    """module -> channels that it uses in elementwise operators, reductions, softmax or cat."""
    found: dict[str, list[Tensor]] = {}
    for recorded in (recorded for one in passes for recorded in one.calls):
        if torch.Tag.pointwise in recorded.op.tags or recorded.where.op in _MIXES:
            found.setdefault(recorded.where.module, []).extend(recorded.inputs)
    return found
