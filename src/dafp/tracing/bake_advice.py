"""Reasons for keeping channels that name a computed weight as the cause."""

from dataclasses import replace

from torch import nn

from ..graph.channel_graph import ChannelGraph
from ..network.baking import has_computed_weight
from ..network.named_tensors import modules_of


def with_advice(graph: ChannelGraph, model: nn.Module) -> ChannelGraph:
    """The graph; where a kept channel meets a computed weight, the reason says what to do."""
    layers, computed = dict(modules_of(model)), dict[str, bool]()
    kept = []
    for entry in graph.kept:
        names = [name.partition(".parametrizations")[0] for name in (entry.module, entry.name)]
        for name in names:
            if name in layers and name not in computed:
                computed[name] = has_computed_weight(layers[name])
        found = [name for name in names if computed.get(name)]
        if found:
            advice = f"the weight of {found[0]!r} is computed: dafp.bake(model) makes it plain"
            entry = entry._replace(reason=f"{entry.reason}; {advice}")
        kept.append(entry)
    return replace(graph, kept=tuple(kept))
