"""Soft thresholding of BN scales during training, by what their channels cost.

γ ← soft(γ − μ·∇, μ·ρ·c) at every step, with c the cost of the channel and ρ such that the asked
share of the scales is zero in time. Used by methods that differ in what a channel costs.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import criteria
from ..criteria.scores import Scores
from ..graph.channel_graph import ChannelGraph
from ..selection.rules import global_ranking
from ..selection.targets import removed_share
from ..sparse_training.scale_penalty import ScalePenalty
from .method import Task
from .zeroing import Channels, choose, filter_groups, filter_scores, without

CHECKS = 4  # updates of ρ per epoch
ARRIVAL = 0.7  # share of the training after which the target should be met
STRETCH = 0.01  # scales get at least this share of the training to reach zero, even after ARRIVAL
HOLD = 1e9  # ρ·c of a scale that is held at zero

Costs = Mapping[str, float]  # group -> cost of one of its channels


class ScaleShrinking:
    """Penalises every scale by ρ·c, with ρ such that `share` of the unit is zero in time."""

    def __init__(
        self, task: Task, optimizer: Optimizer, share: float, costs: Callable[[], Costs]
    ) -> None:
        self.task, self.share, self.costs, config = task, share, costs, task.config
        choose(task, filter_scores(task, criteria.bn_scale), share, global_ranking)
        self.scales = ScalePenalty(task.model, task.graph, optimizer, decoupled=True)
        per_epoch = task.data.steps("train", config.batch_size)
        self.steps, self.every = per_epoch * config.sparse.epochs, max(1, per_epoch // CHECKS)
        self.step, self.epoch, self.rho = 0, 0, 0.0
        self._steer()
        optimizer.register_step_post_hook(self._after_step)

    def end_epoch(self) -> Mapping[str, Any]:
        self.epoch += 1
        return {"sparsity": self.reached(), "target": self.share, "penalty": self.rho}

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": self.epoch,
            "rho": self.rho,
            "scales": self.scales.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.epoch, self.rho = state["step"], state["epoch"], state["rho"]
        self.scales.load_state_dict(state["scales"])

    def reached(self) -> float:
        """The share of the unit that channels of scale zero have."""
        gone = zero_scales(self.task.model, self.task.graph)
        return removed_share(self.task.graph, without(self.task.graph, gone), self.task.config.unit)

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.step += 1
        if self.step % self.every == 0:
            self._steer()

    def _steer(self) -> None:
        """Set ρ so that the scales that the target removes are zero by ARRIVAL, ignoring the loss.

        A scale needs |γ|/(μ·ρ·c) steps to reach zero; the target removes those that need the
        fewest. In the second half of the training only these are penalised, so that no more than
        the target becomes zero.
        """
        costs = self.costs()
        due, size, cost = self._due(costs), self.scales.magnitudes(), self._per_channel(costs)
        alive = due & (size > 0) & self.scales.penalised
        left = max(STRETCH * self.steps, ARRIVAL * self.steps - self.step)
        self.rho = 0.0
        if bool(alive.any()):
            farthest = float((size[alive] / cost[alive]).max())
            self.rho = farthest / (left * self.scales.fastest_rate())
        penalised = due if 2 * self.step >= self.steps else torch.ones_like(due)
        penalties = torch.where(penalised, self.rho * cost, 0.0)
        self.scales.set_penalties(torch.where(due & (size == 0), HOLD, penalties))

    def _per_channel(self, costs: Costs) -> Tensor:
        """The cost of every channel of all groups, relative to the mean over groups."""
        mean = sum(costs.values()) / max(1, len(costs))
        groups = self.task.graph.groups
        return torch.cat([torch.full((g.size,), costs.get(g.name, 0.0) / mean) for g in groups])

    def _due(self, costs: Costs) -> Tensor:
        """A flag for every channel of all groups: whether the target removes it, by |γ|/c."""
        scores = weighed_scales(self.task, costs)
        chosen = choose(self.task, scores, self.share, global_ranking)
        nothing = {g.name: torch.zeros(g.size, dtype=torch.bool) for g in self.task.graph.groups}
        return torch.cat(list({**nothing, **chosen}.values()))


def zero_scales(model: nn.Module, graph: ChannelGraph) -> Channels:
    """Flags of the filters whose scale is exactly zero; at least one per group is not flagged."""
    found = {}
    scores = criteria.bn_scale(model, graph)
    for group in filter_groups(graph):
        flags = scores[group.name] == 0
        if bool(flags.all()):
            flags[-1] = False
        found[group.name] = flags
    return found


def weighed_scales(task: Task, costs: Costs) -> Scores:
    """|γ|/c of every filter."""
    scores = filter_scores(task, criteria.bn_scale)
    return {name: score / costs[name] for name, score in scores.items()}
