"""Several pruning steps, one after the other, as one plan of the original network."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan

Places = Mapping[tuple[str, int], Tensor]  # (tensor, axis): positions that are left


@dataclass(frozen=True)
class PlanHistory:
    """What was removed from a network so far, in channels of the original network."""

    graph: ChannelGraph  # of the original network
    plan: PruningPlan  # all steps in one
    places: Places = field(default_factory=dict)  # original positions of what is left

    def plan_with(self, graph: ChannelGraph, plan: PruningPlan) -> PruningPlan:
        """One plan for all steps so far and one more: `plan`, for the present network (`graph`)."""
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
                "the plans of several steps do not make one plan of this network; prune in one step"
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
    """The history of a network that has not been pruned yet."""
    return PlanHistory(graph, graph.resolve(PruningPlan({})))


def _entries(graph: ChannelGraph) -> Iterator[tuple[tuple[str, int, int], tuple[str, int]]]:
    """(Tensor, axis, position) of every producer and consumer entry, and its (group, channel)."""
    for group in graph.groups:
        for slot in (*group.producers, *group.consumers):
            each = len(slot.index) // group.size
            for at, place in enumerate(slot.index):
                yield (slot.param, slot.dim, place), (group.name, at // each)
