"""Structured sparsity learning (Wen et al., 2016): group lasso on filters, by proximal steps.

The loss gets λ·Σ_l m_l·Σ_f ‖W_f‖ over the filters f of every layer l. After each optimizer step the
proximal operator of this term shortens every filter: W_f ← W_f·max(0, 1 − lr·λ·m_l/‖W_f‖). m_l is
the mean length of the filters of the layer at the start.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from .. import criteria
from ..criteria.scores import Scores
from ..graph.channel_graph import Group
from ..graph.plan import PruningPlan
from ..network.named_tensors import tensors_of
from ..selection.rules import global_ranking
from ..selection.targets import removed_share
from .method import Method, Task
from .ssr import relative
from .zeroing import (
    Channels,
    choose,
    filter_groups,
    filter_scores,
    settle_norms,
    without,
    zero_filters,
)

CHECKS = 4  # updates of λ per epoch
ARRIVAL = 0.7  # share of the training after which the target should be met
STRETCH = 0.01  # filters get at least this share of the training to reach zero, even after ARRIVAL


class GroupLasso:
    """Shortens all filters after every step, with λ such that the target is met in time."""

    def __init__(self, task: Task, optimizer: Optimizer) -> None:
        self.task, self.optimizer, config = task, optimizer, task.config
        # raises early if the target cannot be reached
        choose(task, filter_scores(task, criteria.l2_norm), config.target, global_ranking)
        self.groups = filter_groups(task.graph)
        per_epoch = task.data.steps("train", config.batch_size)
        self.steps, self.every = per_epoch * config.sparse.epochs, max(1, per_epoch // CHECKS)
        self.unit = {
            name: float(length.mean().clamp(min=1e-30))
            for name, length in lengths(task.model, self.groups).items()
        }
        self.step, self.epoch, self.penalty = 0, 0, 0.0
        self.due: Channels = {}  # filters that the target removes
        self.held: Channels = {}  # those of them that are zero already
        self._steer()
        optimizer.register_step_post_hook(self._after_step)

    def end_epoch(self) -> Mapping[str, Any]:
        task = self.task
        now = lengths(task.model, self.groups)
        gone = {name: length == 0 for name, length in now.items()}
        self.epoch += 1
        if self.epoch == task.config.sparse.epochs:
            zero_filters(task.model, task.graph, gone)  # with their biases
            settle_norms(task.model, task.graph, gone)
        share = removed_share(task.graph, without(task.graph, gone), task.config.unit)
        return {"sparsity": share, "target": task.config.target, "penalty": self.penalty}

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": self.epoch,
            "penalty": self.penalty,
            "unit": dict(self.unit),
            "due": {name: flags.clone() for name, flags in self.due.items()},
            "held": {name: flags.clone() for name, flags in self.held.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.epoch, self.penalty = state["step"], state["epoch"], state["penalty"]
        self.unit, self.due = dict(state["unit"]), dict(state["due"])
        self.held = dict(state["held"])

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.step += 1
        now = lengths(self.task.model, self.groups)
        factors = {}
        for name, length in now.items():
            due = self.due[name]
            factor = shortened(length, self._rate() * self.penalty * self.unit[name])
            # in the second half only filters that are due, so that no others become zero
            factors[name] = torch.where(due | (2 * self.step < self.steps), factor, 1.0)
            # once zero, filters that are due stay zero: behind a BN their gradient is huge
            factors[name][due & self.held[name]] = 0.0
            self.held[name] |= due & (factors[name] == 0)
        scale(self.task.model, self.groups, factors)
        if self.step % self.every == 0:
            self._steer()

    def _rate(self) -> float:
        return float(self.optimizer.param_groups[0]["lr"])

    def _steer(self) -> None:
        """Set λ so that the filters that the target removes are zero by ARRIVAL without the loss.

        A filter needs ‖W_f‖/(lr·λ·m_l) steps to reach zero. The target removes the shortest ones,
        relative to the mean of their layer now.
        """
        now = lengths(self.task.model, self.groups)
        config = self.task.config
        in_units = {name: length / self.unit[name] for name, length in now.items()}
        self.due = choose(self.task, in_units, config.target, global_ranking)
        self.held = {name: self.due[name] & (now[name] == 0) for name in now}
        farthest = max(
            float(in_units[name][flags].max()) if bool(flags.any()) else 0.0
            for name, flags in self.due.items()
        )
        left = max(STRETCH * self.steps, ARRIVAL * self.steps - self.step)
        self.penalty = farthest / (left * self._rate())


def shortened(length: Tensor, threshold: float) -> Tensor:
    """The factor max(0, 1 − t/‖W‖) of argmin_V t·‖V‖ + ½·‖V − W‖² = factor·W."""
    return (1 - threshold / length.clamp(min=1e-30)).clamp(min=0)


@torch.no_grad()
def lengths(model: nn.Module, groups: list[Group]) -> Scores:
    """‖W_f‖ of every filter, over all producers of its channel, on the CPU."""
    tensors, found = tensors_of(model), {}
    for group in groups:
        squares = []
        for slot in group.producers:
            weight = tensors[slot.param].detach().movedim(slot.dim, 0)
            index = torch.tensor(slot.index, device=weight.device)
            squares.append(weight[index].float().reshape(group.size, -1).square().sum(1).cpu())
        found[group.name] = torch.stack(squares).sum(0).sqrt()
    return found


@torch.no_grad()
def scale(model: nn.Module, groups: list[Group], factors: Scores) -> None:
    """Multiply every filter by its factor, in place."""
    tensors = tensors_of(model)
    for group in groups:
        for slot in group.producers:
            weight = tensors[slot.param]
            each = torch.ones(weight.shape[slot.dim], device=weight.device, dtype=weight.dtype)
            index = torch.tensor(slot.index, device=weight.device)
            each[index] = factors[group.name].repeat_interleave(len(index) // group.size).to(each)
            shape = [1] * weight.dim()
            shape[slot.dim] = -1
            weight.mul_(each.view(shape))


def plan(task: Task) -> PruningPlan:
    """Remove the filters that training set to zero: they are the shortest."""
    scores = relative(filter_scores(task, criteria.l2_norm))
    return without(task.graph, choose(task, scores, task.config.target, global_ranking))


METHOD = Method("ssl", plan, GroupLasso, from_baseline=True)
