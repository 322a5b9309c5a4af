"""The public entry: model and example in, channel graph out."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import TraceError
from ..graph.channel_graph import ChannelGraph
from ..graph.slicing import selects
from ..network.calling import FORWARD_ERRORS, batch_of, uncollected
from ..network.fingerprint import fingerprint
from ..network.named_tensors import modules_of, tensors_of
from .call import Call, Rule
from .groups import group_channels
from .preconditions import check_example, check_traceable
from .rehearsal import rehearse
from .residual_streams import Network
from .rules.table import RULES
from .run_network import Pass, observe
from .trial import TrialLedger
from .width_answers import Answers

MAX_TRIALS = 24
_MIXES = ("mean", "sum", "amax", "amin", "max", "min", "cat", "_softmax")


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
    observed = observe(model, example, op_rules, module_rules)
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
        if rehearse(model, observed, grouping, graph, answers, module_rules):
            return graph
    note = f"after {MAX_TRIALS} trials a narrower copy still does not run; prune may refuse"
    return replace(graph, notes=(*graph.notes, note))


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
