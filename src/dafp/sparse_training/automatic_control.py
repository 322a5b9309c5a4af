"""The automatic control of λ, for step="auto": which channels are due, and how large λ must be.

A schedule defines how much sparsity is due at each step (`schedule.py`). A few times per epoch the
control chooses the channels that become due within the next stretch (10 % of all steps), those of
the smallest importance first. λ is such that the largest of their scales reaches zero in that time.
All other channels have λ = 0.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.channel_graph import ChannelGraph
from ..selection.targets import share_of_flags
from .schedule import SparsitySchedule

CHOSEN_LAST = 8  # channels of a group that are chosen last
CHOSEN_LAST_SHARE = 0.25  # of a group that is chosen last, at most
SELECTION_FACTOR = 0.1  # chosen selections cost at most this share of the costliest chosen filter
FASTER = 1.25  # factor on λ while the sparsity is behind its schedule


@dataclass(frozen=True)
class ChannelState:
    """One value per channel of the graph, measured in the network as it is now."""

    relative: Tensor  # score as a share of the best score in the group
    magnitude: Tensor  # |γ|
    importance: Tensor  # first-order Taylor importance
    moving: Tensor  # whether its scale has a learning rate above 0
    rate: float  # distance that λ = 1 moves the fastest scale in one step


@dataclass(frozen=True)
class Decision:
    """What the penalty does until the next decision."""

    chosen: Tensor  # channels that are penalised with λ
    decayed: Tensor  # channels whose β moves to zero
    decay_steps: float  # number of steps in which β reaches zero; 0: at once


class AutomaticControl:
    """Chooses λ and the channels that it acts on."""

    step = "auto"

    def __init__(
        self, graph: ChannelGraph, penalised: Tensor, *, target: float, p: float, unit: str
    ) -> None:
        self.graph, self.penalised = graph, penalised
        self.target, self.p, self.unit = target, p, unit
        self.sizes = [group.size for group in graph.groups]
        self.is_filter = filter_channels(graph)
        self.penalty = 0.0  # λ
        self.effort = 1.0  # factor on λ that grows while the sparsity is behind its schedule

    def update(self, state: ChannelState, schedule: SparsitySchedule, period: int) -> Decision:
        """Choose the channels that are due, and the λ that brings them to zero in time.

        `period` is the number of steps until the next update.
        """
        dead = state.relative <= self.p
        soon = schedule.step + schedule.stretch
        chosen = self.choose(state, self.target * schedule.due(soon))
        waiting = chosen & self.is_filter & (state.magnitude > 0) & state.moving
        arrived = schedule.step >= schedule.arrival
        behind = arrived or self._share_of(dead) < schedule.aim(self.target) - 0.01
        late = behind and bool(waiting.any())
        self.effort = self.effort * FASTER if late else max(1.0, self.effort / FASTER)
        if bool(waiting.any()):
            largest = float(state.magnitude[waiting].max())
            distance = self.effort * largest / max(schedule.stretch, 2.0 * period)
            # near zero the distance is short and would lower λ: while late, λ grows instead
            at_least = self.penalty * FASTER if late else 0.0
            at_most = float(state.magnitude.max()) / state.rate
            self.penalty = min(max(distance / state.rate, at_least), at_most)
        # a channel with γ = 0 still outputs act(β): β decays too, so that pruning changes nothing
        decay_steps = 0 if schedule.step > schedule.rest else schedule.stretch
        return Decision(chosen, dead & chosen, decay_steps)

    def choose(self, state: ChannelState, target: float) -> Tensor:
        """The least important filters that make up this share, and selections far below them.

        Selections do not count in P, so none is needed to reach the target.
        """
        cost = self.removal_cost(state)
        filters = cost.masked_fill(~self.is_filter, torch.inf)
        order = filters.argsort(stable=True)
        low, high = 0, int(filters.isfinite().sum())
        if self.unit == "filters" and not self.graph.label_index.even_splits:
            high = min(high, round(target * int(self.is_filter.sum())))
        else:
            while low < high:
                middle = (low + high) // 2
                if share_without(self.graph, order[:middle], self.unit) < target:
                    low = middle + 1
                else:
                    high = middle
        chosen = torch.zeros_like(self.is_filter)
        if high:
            chosen = ~self.is_filter & (cost <= SELECTION_FACTOR * filters[order[high - 1]])
            chosen[order[:high]] = True
        return chosen

    def removal_cost(self, state: ChannelState) -> Tensor:
        """Order of removal: within a group by score, between groups by Taylor importance.

        The channel with the k-th lowest score has the k-th lowest importance of its group. The best
        few of a group are chosen last, so that no layer becomes a bottleneck; the best one, and
        channels without a scale, are never chosen.
        """
        relative, importance = state.relative, state.importance
        cost, best = torch.empty_like(relative), torch.zeros_like(self.is_filter)
        for own, group_best, score, loss in zip(
            cost.split(self.sizes),
            best.split(self.sizes),
            relative.split(self.sizes),
            importance.split(self.sizes),
            strict=True,
        ):
            order = score.argsort(stable=True)
            own.copy_(rank_matched(order, loss))
            last = min(CHOSEN_LAST, int(len(order) * CHOSEN_LAST_SHARE))
            own[order[len(order) - last :]] += 1 + importance.sum()
            group_best[order[-1]] = True
        cost[relative <= self.p] = -1.0  # these are below the threshold already
        return cost.masked_fill_(~self.penalised | best, torch.inf)

    def _share_of(self, dead: Tensor) -> float:
        """The share of the unit that dead channels make up."""
        if self.unit == "filters":
            return float(dead[self.is_filter].double().mean())
        return share_without(self.graph, (dead & self.is_filter).nonzero().flatten(), self.unit)

    def state_dict(self) -> dict[str, Any]:
        return {"penalty": self.penalty, "effort": self.effort}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.penalty, self.effort = state["penalty"], state["effort"]


def rank_matched(order: Tensor, importance: Tensor) -> Tensor:
    """The importances of a group, reassigned: the k-th channel in order has the k-th lowest."""
    matched = torch.empty_like(importance)
    matched[order] = importance.sort().values
    return matched


def filter_channels(graph: ChannelGraph) -> Tensor:
    """Channel -> whether its group is of kind "filter"."""
    kinds = [torch.full((group.size,), group.kind == "filter") for group in graph.groups]
    return torch.cat(kinds or [torch.zeros(0)]).bool()


def share_without(graph: ChannelGraph, channels: Tensor, unit: str) -> float:
    """The share of the unit removed with these channels, which are numbered across all groups."""
    sizes = [group.size for group in graph.groups]
    stays = torch.ones(sum(sizes), dtype=torch.bool)
    stays[channels] = False
    return share_of_flags(graph, list(stays.split(sizes)), unit)
