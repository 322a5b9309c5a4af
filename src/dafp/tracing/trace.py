"""The public entry: model and example in, channel graph out."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch._subclasses import FakeTensorMode

from ..copying import tensors_of
from ..fingerprint import fingerprint
from ..graph import ChannelGraph
from ..record import Record
from .flow import Flow, Rule
from .grouping import Network, group_channels
from .ops import RULES, rule_without_entry
from .passes import batch_of, fake_example, label_tensors, new_labels, run_pass, skeleton_of


def trace(
    model: nn.Module,
    example: Any,
    residual: str = "keep",
    keep: Sequence[str] = (),
    rules: Mapping[Any, Rule] | None = None,
) -> ChannelGraph:
    """Find what can be removed from `model`, and what has to go together."""
    rules = dict(rules or {})
    module_rules = {k: r for k, r in rules.items() if isinstance(k, type)}
    op_rules = {**RULES, **{k: r for k, r in rules.items() if not isinstance(k, type)}}
    record = Record()
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    skeleton = skeleton_of(model, fake)
    labels = new_labels(record, skeleton)
    flow = Flow(record, op_rules, rule_without_entry, fake)
    label_tensors(flow, skeleton, labels)
    skeleton.eval()
    run_pass(flow, skeleton, fake_example(example, fake), module_rules)
    skeleton.train()
    flow.count_macs = False
    run_pass(flow, skeleton, fake_example(example, fake, 2), module_rules)
    tensors = tensors_of(model)
    network = Network(
        {n: tuple(t.shape) for n, t in tensors.items()},
        frozenset(n for n, t in tensors.items() if isinstance(t, nn.Parameter)),
        {
            f"{n}.weight": n
            for n, m in model.named_modules()
            if isinstance(m, (nn.modules.conv._ConvNd, nn.Linear))
        },
        batch_of(example),
    )
    g = group_channels(record, network, residual=residual, keep=keep, counts=(), balances=())
    return ChannelGraph(g.groups, g.kept, g.structure, fingerprint(model), example)
