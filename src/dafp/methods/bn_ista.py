"""BN-ISTA (Ye et al., 2018): soft thresholding of BN scales, stronger in layers that cost more.

γ ← soft(γ − μ·∇, μ·ρ·λ_l) at every step, with λ_l the memory cost of layer l. Before training, γ
and β are multiplied by α and the consumers' weights divided by α: the outputs stay the same, but
the scales are smaller relative to these weights. After training this is reversed.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import criteria
from ..criteria.scores import Scores
from ..graph.channel_graph import ChannelGraph, Group
from ..graph.plan import PruningPlan
from ..network.calling import call_model
from ..network.cost import layer_costs
from ..network.model_copy import deep_copy
from ..network.named_tensors import tensors_of
from ..selection.rules import global_ranking
from ..selection.targets import removed_share
from ..sparse_training.scale_penalty import ScalePenalty
from .method import Method, Task
from .zeroing import Channels, choose, filter_groups, filter_scores, without

ALPHA = 0.5  # the original uses 0.001 to 1
CHECKS = 4  # updates of ρ per epoch
ARRIVAL = 0.7  # share of the training after which the target should be met
STRETCH = 0.01  # scales get at least this share of the training to reach zero, even after ARRIVAL
HOLD = 1e9  # ρ·λ_l of a scale that is held at zero


class Ista:
    """Penalises every scale by ρ·λ_l, with ρ such that the target is met in time."""

    def __init__(self, task: Task, optimizer: Optimizer) -> None:
        self.task, config = task, task.config
        choose(task, filter_scores(task, criteria.bn_scale), config.target, global_ranking)
        self.scales = ScalePenalty(task.model, task.graph, optimizer, decoupled=True)
        per_epoch = task.data.steps("train", config.batch_size)
        self.steps, self.every = per_epoch * config.sparse.epochs, max(1, per_epoch // CHECKS)
        self.costs = memory_costs(task.model, task.graph)
        mean = sum(self.costs.values()) / max(1, len(self.costs))
        self.cost = torch.cat(
            [torch.full((g.size,), self.costs.get(g.name, 0.0) / mean) for g in task.graph.groups]
        )
        self.step, self.epoch, self.rho = 0, 0, 0.0
        self._steer()
        optimizer.register_step_post_hook(self._after_step)

    def end_epoch(self) -> Mapping[str, Any]:
        task = self.task
        share = self._share()
        self.epoch += 1
        if self.epoch == task.config.sparse.epochs:
            rescale(task.model, task.graph, 1 / ALPHA)
        return {"sparsity": share, "target": task.config.target, "penalty": self.rho}

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

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.step += 1
        if self.step % self.every == 0:
            self._steer()

    def _steer(self) -> None:
        """Set ρ so that the scales that the target removes are zero by ARRIVAL, ignoring the loss.

        A scale needs |γ|/(μ·ρ·λ_l) steps to reach zero; the target removes those that need the
        fewest. In the second half of the training only these are penalised, so that no more than
        the target becomes zero.
        """
        due, size = self._due(), self.scales.magnitudes()
        alive = due & (size > 0) & self.scales.penalised
        left = max(STRETCH * self.steps, ARRIVAL * self.steps - self.step)
        self.rho = 0.0
        if bool(alive.any()):
            farthest = float((size[alive] / self.cost[alive]).max())
            self.rho = farthest / (left * self.scales.fastest_rate())
        penalised = due if 2 * self.step >= self.steps else torch.ones_like(due)
        penalties = torch.where(penalised, self.rho * self.cost, 0.0)
        self.scales.set_penalties(torch.where(due & (size == 0), HOLD, penalties))

    def _due(self) -> Tensor:
        """A flag for every channel of all groups: whether the target removes it, by |γ|/λ_l."""
        scores = weighed_scales(self.task, self.costs)
        chosen = choose(self.task, scores, self.task.config.target, global_ranking)
        nothing = {g.name: torch.zeros(g.size, dtype=torch.bool) for g in self.task.graph.groups}
        return torch.cat(list({**nothing, **chosen}.values()))

    def _share(self) -> float:
        gone = zero_scales(self.task.model, self.task.graph)
        return removed_share(self.task.graph, without(self.task.graph, gone), self.task.config.unit)


def memory_costs(model: nn.Module, graph: ChannelGraph) -> dict[str, float]:
    """λ_l of every filter group: memory of a channel, H·W for its map + k²·C_in for its filter."""
    tensors, costs = tensors_of(model), layer_costs(model, graph.example)
    found = {}
    for group in filter_groups(graph):
        total = 0.0
        for slot in group.producers:
            weight = tensors[slot.param]
            layer = costs[slot.param.rpartition(".")[0]]
            total += layer.macs / weight.numel() + weight.numel() / weight.shape[slot.dim]
        found[group.name] = total
    return found


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


@torch.no_grad()
def rescale(model: nn.Module, graph: ChannelGraph, alpha: float) -> list[str]:
    """γ, β ← α·γ, α·β and W ← W/α in the consumers, for groups where the outputs do not change.

    This is so where every operator between them is positively homogeneous, such as ReLU and
    pooling; each group is tried on noise. Returns the names of the rescaled groups.
    """
    trial, example = deep_copy(model).eval(), torch.as_tensor(graph.example)
    noise = torch.randn(example.shape, generator=torch.Generator().manual_seed(0))
    noise = noise.to(next(model.parameters()))
    before = call_model(trial, noise)
    tensors, found = tensors_of(trial), []
    for group in filter_groups(graph):
        if not group.scales:
            continue
        _multiply(tensors, graph, group, 2.0)
        if _alike(before, call_model(trial, noise)):
            found.append(group.name)
        _multiply(tensors, graph, group, 0.5)  # undone exactly: both factors are powers of two
    for name in found:
        _multiply(tensors_of(model), graph, graph[name], alpha)
    return found


def _alike(before: Tensor, after: Tensor) -> bool:
    return bool(torch.allclose(before, after, rtol=1e-4, atol=1e-5 * float(before.abs().max())))


def _multiply(tensors: dict[str, Tensor], graph: ChannelGraph, group: Group, alpha: float) -> None:
    slots = [(slot.param, 0, slot.index, alpha) for slot in group.scales]
    for slot in group.scales:
        shift = graph.label_index.shifts.get(slot.param)
        if shift:
            slots.append((shift, 0, slot.index, alpha))
    slots += [(slot.param, slot.dim, slot.index, 1 / alpha) for slot in group.consumers]
    for name, dim, index, factor in slots:
        weight = tensors[name]
        factors = torch.ones(weight.shape[dim], device=weight.device)
        factors[list(index)] = factor
        shape = [1] * weight.dim()
        shape[dim] = -1
        weight.mul_(factors.view(shape))


def weighed_scales(task: Task, costs: dict[str, float]) -> Scores:
    """|γ|/λ_l of every filter."""
    scores = filter_scores(task, criteria.bn_scale)
    return {name: score / costs[name] for name, score in scores.items()}


def plan(task: Task) -> PruningPlan:
    """Remove filters by |γ|/λ_l, zeros first, until the target is met."""
    scores = weighed_scales(task, memory_costs(task.model, task.graph))
    return without(task.graph, choose(task, scores, task.config.target, global_ranking))


def prepare(task: Task) -> None:
    rescale(task.model, task.graph, ALPHA)


METHOD = Method("bn-ista", plan, Ista, prepare=prepare, from_baseline=True)
