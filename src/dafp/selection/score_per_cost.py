"""Scores divided by what the channels cost."""

import torch

from ..criteria.scores import Scores
from ..graph.channel_graph import ChannelGraph


def score_per_cost(scores: Scores, graph: ChannelGraph, unit: str) -> Scores:
    """Scores divided by the share of the network that removing one channel of the group saves."""
    everything = [torch.ones(g.size, dtype=torch.bool) for g in graph.groups]
    whole = getattr(graph.whole, unit)
    weighed = {}
    for number, group in enumerate(graph.groups):
        if group.name not in scores:
            continue
        flags = list(everything)
        flags[number] = flags[number].clone()
        flags[number][0] = False
        saved = max(1, whole - getattr(graph.predict(flags), unit))
        weighed[group.name] = scores[group.name] / (saved / whole)
    return weighed
