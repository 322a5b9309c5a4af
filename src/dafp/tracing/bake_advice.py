"""Reasons for keeping channels that name what `dafp.bake` makes plain as the cause."""

from dataclasses import replace

from torch import nn

from ..graph.channel_graph import ChannelGraph
from ..network.baking import has_computed_weight
from ..network.named_tensors import modules_of
from ..network.plain_attention import PlainAttention, plain_attention_of


def with_advice(graph: ChannelGraph, model: nn.Module) -> ChannelGraph:
    """The graph; where a kept channel meets what `bake` makes plain, the reason says so."""
    layers, known = dict(modules_of(model)), dict[str, str]()
    kept = []
    for entry in graph.kept:
        names = [name.partition(".parametrizations")[0] for name in (entry.module, entry.name)]
        for name in names:
            if name in layers and name not in known:
                known[name] = _advice(name, layers[name])
        found = next((known[name] for name in names if known.get(name)), "")
        if entry.op == "mean" and isinstance(layers.get(entry.module), PlainAttention):
            found = f"the weights of {entry.module!r} are averaged over its heads: call it with "
            found += "need_weights=False if nothing uses them"
        kept.append(entry._replace(reason=f"{entry.reason}; {found}") if found else entry)
    return replace(graph, kept=tuple(kept))


def _advice(name: str, layer: nn.Module) -> str:
    if plain_attention_of(layer) is not None:
        return f"{name!r} hides its heads: dafp.bake(model) makes it plain"
    if has_computed_weight(layer):
        return f"the weight of {name!r} is computed: dafp.bake(model) makes it plain"
    return ""
