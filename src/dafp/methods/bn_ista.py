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

from ..graph.channel_graph import ChannelGraph, Group
from ..graph.plan import PruningPlan
from ..network.calling import call_model
from ..network.cost import layer_costs
from ..network.model_copy import deep_copy
from ..network.named_tensors import tensors_of
from ..selection.rules import global_ranking
from .method import Method, Task
from .scale_shrinking import ScaleShrinking, weighed_scales
from .zeroing import choose, filter_groups, without

ALPHA = 0.5  # the original uses 0.001 to 1


class Ista(ScaleShrinking):
    """Penalises every scale by ρ·λ_l, and undoes the rescaling after the last epoch."""

    def __init__(self, task: Task, optimizer: Optimizer) -> None:
        costs = memory_costs(task.model, task.graph)
        super().__init__(task, optimizer, task.config.target, lambda: costs)

    def end_epoch(self) -> Mapping[str, Any]:
        row = super().end_epoch()
        if self.epoch == self.task.config.sparse.epochs:
            rescale(self.task.model, self.task.graph, 1 / ALPHA)
        return row


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


def plan(task: Task) -> PruningPlan:
    """Remove filters by |γ|/λ_l, zeros first, until the target is met."""
    scores = weighed_scales(task, memory_costs(task.model, task.graph))
    return without(task.graph, choose(task, scores, task.config.target, global_ranking))


def prepare(task: Task) -> None:
    rescale(task.model, task.graph, ALPHA)


METHOD = Method("bn-ista", plan, Ista, prepare=prepare, from_baseline=True)
