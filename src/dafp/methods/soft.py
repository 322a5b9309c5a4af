"""Soft filter pruning: SFP (He 2018), asymptotic SFP (He 2019), geometric median (He 2019).

Before the first and after every epoch the least important filters of each layer are set to zero.
SFP and ASFP continue to train them; FPGM holds them at zero until the next choice. Filters that are
zero at the end are removed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.optim import Optimizer

from .. import criteria
from ..criteria.scores import Criterion
from ..graph.plan import PruningPlan
from ..network.named_tensors import tensors_of
from ..selection.targets import removed_share
from .method import Method, Task
from .zeroing import (
    choose,
    entries,
    filter_scores,
    makers,
    settle_norms,
    without,
    zero_filters,
    zeroed,
)

Course = Callable[[float, int, int], float]  # (target, epochs done, epochs) -> ratio


def constant(target: float, epoch: int, epochs: int) -> float:
    """SFP and FPGM: the whole ratio from the first epoch on."""
    return target


def asymptotic(target: float, epoch: int, epochs: int) -> float:
    """ASFP: b·(1 − e^{−kt}) through (0, 0), (N/8, ¾r) and (N, r).

    With q = e^{−kN/8} the three points require 1 + q + … + q⁷ = 4/3.
    """
    q = 0.25
    for _ in range(20):  # q ← (1/3) / (1 + q + … + q⁶): each iteration gains a digit
        q = 1 / (3 * sum(q**power for power in range(7)))
    return float(target * (1 - q ** (8 * epoch / epochs)) / (1 - q**8))


class Soft:
    """Sets the filters with the lowest scores to zero after every epoch."""

    def __init__(
        self,
        task: Task,
        optimizer: Optimizer,
        criterion: Criterion,
        course: Course,
        holds: bool,
        forgets: bool,
    ) -> None:
        self.task, self.criterion, self.course, self.optimizer = task, criterion, course, optimizer
        self.forgets = forgets
        self.epoch = 0
        # raises early if the target cannot be reached
        choose(task, filter_scores(task, criterion), task.config.target)
        self.gone = zeroed(task.model, task.graph)
        if holds:
            optimizer.register_step_pre_hook(self._mask_gradients)
            optimizer.register_step_post_hook(self._hold)

    def end_epoch(self) -> Mapping[str, Any]:
        task, config = self.task, self.task.config
        self.epoch += 1
        ratio = self.course(config.target, self.epoch, config.sparse.epochs)
        self.gone = choose(task, filter_scores(task, self.criterion), ratio)
        zero_filters(task.model, task.graph, self.gone)
        if self.forgets:
            self._forget()
        if self.epoch == config.sparse.epochs:
            settle_norms(task.model, task.graph, self.gone)
        share = removed_share(task.graph, without(task.graph, self.gone), config.unit)
        return {"sparsity": share, "target": config.target, "ratio": ratio}

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "gone": {n: f.clone() for n, f in self.gone.items()}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.gone = state["epoch"], dict(state["gone"])

    @torch.no_grad()
    def _forget(self) -> None:
        """Set the optimizer's running means of zeroed filters to zero.

        Behind a filter of norm 0, BN divides by √eps: its gradient is about 300 times as large as
        usual. With momentum left over it grows within a few steps beyond all others, and after the
        next epoch the filters in use are zeroed instead.
        """
        tensors = tensors_of(self.task.model)
        for name, flags in self.gone.items():
            for slot in makers(self.task.graph, self.task.graph[name]):
                weight = tensors[slot.param]
                for mean in self.optimizer.state.get(weight, {}).values():
                    if isinstance(mean, torch.Tensor) and mean.shape == weight.shape:
                        mean.index_fill_(slot.dim, entries(slot, flags, mean.device), 0)

    @torch.no_grad()
    def _mask_gradients(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        tensors = tensors_of(self.task.model)
        for name, flags in self.gone.items():
            for slot in makers(self.task.graph, self.task.graph[name]):
                grad = tensors[slot.param].grad
                if grad is not None:
                    grad.index_fill_(slot.dim, entries(slot, flags, grad.device), 0)

    def _hold(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Set the filters to zero again: momentum still moves them without a gradient."""
        zero_filters(self.task.model, self.task.graph, self.gone)


def _method(
    name: str, criterion: Criterion, course: Course, holds: bool = False, forgets: bool = False
) -> Method:
    def train(task: Task, optimizer: Optimizer) -> Soft:
        return Soft(task, optimizer, criterion, course, holds, forgets)

    def prepare(task: Task) -> None:
        """Set filters to zero before the first epoch."""
        ratio = course(task.config.target, 0, task.config.sparse.epochs)
        zero_filters(task.model, task.graph, choose(task, filter_scores(task, criterion), ratio))

    def plan(task: Task) -> PruningPlan:
        """Remove the zero filters: their norm is the smallest, whatever criterion chose them."""
        scores = filter_scores(task, criteria.l2_norm)
        return without(task.graph, choose(task, scores, task.config.target))

    return Method(name, plan, train, prepare=prepare, finetunes=False)


SFP = _method("sfp", criteria.l2_norm, constant)
ASFP = _method("asfp", criteria.l2_norm, asymptotic, forgets=True)
FPGM = _method("fpgm", criteria.geometric_median, constant, holds=True)
