"""How much of a unit a network has, or what a plan leaves of it."""

from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan


def amount(graph: ChannelGraph, unit: str, plan: PruningPlan | None = None) -> int:
    """Filters, parameters or multiply-adds of a network, or of what a plan leaves of it."""
    if unit == "filters" and plan is None:
        return graph.filters
    flags = graph.balanced(graph.flags(plan or PruningPlan({})))
    if unit == "filters":
        pairs = zip(graph.groups, flags, strict=True)
        return sum(int(flag.sum()) for group, flag in pairs if group.kind == "filter")
    cost = graph.whole if plan is None else graph.predict(flags)
    return cost.params if unit == "params" else cost.macs
