"""Several cuts, one after the other, as one plan of the network they began with."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan

Places = Mapping[tuple[str, int], Tensor]  # (tensor, axis): which entries a cut left


@dataclass(frozen=True)
class PlanHistory:
    """What was cut from a network so far, in channels of the network as it was at first."""

    graph: ChannelGraph  # of the network at first
    plan: PruningPlan  # all cuts in one
    places: Places = field(default_factory=dict)  # where what is left was at first

    def plan_with(self, graph: ChannelGraph, plan: PruningPlan) -> PruningPlan:
        """All cuts in one, with one more: `plan`, of the network as it is now (`graph`)."""
        if not self.places:
            return plan
        kept = {name: set(channels) for name, channels in plan.keep.items()}
        whose = dict(_entries(self.graph))
        gone = set()
        for (tensor, dim, place), (name, channel) in _entries(graph):
            if channel not in kept[name]:
                first = self.places.get((tensor, dim))
                entry = (tensor, dim, place if first is None else int(first[place]))
                if entry in whose:
                    gone.add(whose[entry])
        keep = {
            name: tuple(channel for channel in channels if (name, channel) not in gone)
            for name, channels in self.plan.keep.items()
        }
        whole = self.graph.resolve(PruningPlan(keep))
        if whole.keep != keep or whole.after != plan.after:
            raise PlanError(
                "the cuts of several steps do not make one plan of this network; prune in one step"
            )
        return whole

    def then(self, graph: ChannelGraph, plan: PruningPlan, places: Places) -> "PlanHistory":
        """The history after one more pruning step; `places` are `PruningRecord.positions`."""
        moved = {
            key: self.places[key][left.cpu()] if key in self.places else left.cpu()
            for key, left in places.items()
        }
        return PlanHistory(self.graph, self.plan_with(graph, plan), {**self.places, **moved})


def begin(graph: ChannelGraph) -> PlanHistory:
    """Nothing is cut yet."""
    return PlanHistory(graph, graph.resolve(PruningPlan({})))


def _entries(graph: ChannelGraph) -> Iterator[tuple[tuple[str, int, int], tuple[str, int]]]:
    """(tensor, axis, place) of all that makes or reads a channel, and the channel it belongs to."""
    for group in graph.groups:
        for slot in (*group.producers, *group.consumers):
            each = len(slot.index) // group.size
            for at, place in enumerate(slot.index):
                yield (slot.param, slot.dim, place), (group.name, at // each)
