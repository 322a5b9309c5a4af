"""Structured sparsity regularisation (Lin et al., 2019): ADMM on weights W and a sparse copy F.

W is trained on the loss plus ρ/2·‖W − F + Y/ρ‖², which pulls it towards F. At every update, F
becomes the proximal point of T = W + Y/ρ, in which whole rows are zero, and Y += ρ·(W − F). Each
row is one filter; filters with F = 0 are removed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

from .. import criteria
from ..criteria.scores import Scores
from ..graph.plan import PruningPlan
from ..network.named_tensors import tensors_of
from ..selection.rules import global_ranking
from ..selection.targets import removed_share
from .method import Method, Task
from .zeroing import Channels, choose, filter_groups, filter_scores, without, zero_filters

UPDATES = 2  # of F and Y per epoch
PULL = 3.0  # W − F shrinks by a factor of e^PULL between two updates, if the loss allows it
RISE = 0.5  # share of the training in which the ratio rises to the target
SHORTEN = 0.01  # share of a layer's mean length by which an update may shorten a kept row

Proximal = Callable[[Tensor, Tensor, float], Tensor]  # (T, λ of every row, ρ) -> F


def l21(rows: Tensor, penalty: Tensor, rho: float) -> Tensor:
    """argmin_F λ·Σ‖F_i‖ + ρ/2·‖T − F‖²: T·max(‖T‖ − λ/ρ, 0)/‖T‖."""
    length: Tensor = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    return rows * (length - penalty.view(-1, 1) / rho).clamp(min=0) / length.clamp(min=1e-30)


def l20(rows: Tensor, penalty: Tensor, rho: float) -> Tensor:
    """argmin_F λ·#{F_i ≠ 0} + ρ/2·‖T − F‖²: T where ‖T‖² > 2λ/ρ, else 0."""
    return rows * (rows.square().sum(1, keepdim=True) > 2 * penalty.view(-1, 1) / rho)


def penalty_for(length: float, proximal: Proximal, rho: float) -> float:
    """The smallest λ for which a row of this length becomes zero."""
    return rho * length if proximal is l21 else rho * length**2 / 2


class SSR:
    """Keeps F and Y of every group, one row per filter, and updates them during training."""

    def __init__(self, task: Task, optimizer: Optimizer, proximal: Proximal) -> None:
        self.task, self.proximal = task, proximal
        config = task.config
        # raises early if the target cannot be reached
        choose(task, filter_scores(task, criteria.l2_norm), config.target)
        steps = task.data.steps("train", config.batch_size)
        self.steps, self.period = steps * config.sparse.epochs, max(1, steps // UPDATES)
        built_up = 1 - config.momentum if isinstance(optimizer, SGD) else 1.0
        self.rho = PULL * built_up / (config.sparse.lr * self.period)
        self.step = self.epoch = 0
        self.groups = filter_groups(task.graph)
        self.copy = self._rows()  # F
        self.dual = {name: torch.zeros_like(rows) for name, rows in self.copy.items()}  # Y
        self.penalty = 0.0
        optimizer.register_step_pre_hook(self._draw)
        optimizer.register_step_post_hook(self._after_step)

    def end_epoch(self) -> Mapping[str, Any]:
        self.epoch += 1
        last = self.epoch == self.task.config.sparse.epochs
        if last and self.step < self.steps:  # fp16 skipped steps: make the last update
            self.step = self.steps
            self._update()
        task, gone = self.task, self._gone()
        rows = self._rows()
        left = sum(float(rows[name][flags].square().sum()) for name, flags in gone.items())
        whole = sum(float(value.square().sum()) for value in rows.values())
        if last:
            zero_filters(task.model, task.graph, gone)
        share = removed_share(task.graph, without(task.graph, gone), task.config.unit)
        return {
            "sparsity": share,
            "target": task.config.target,
            "penalty": self.penalty,
            "left_in_rows": (left / whole) ** 0.5,  # ‖W‖ of the rows with F = 0, as a share
        }

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": self.epoch,
            "penalty": self.penalty,
            "copy": {name: rows.cpu().clone() for name, rows in self.copy.items()},
            "dual": {name: rows.cpu().clone() for name, rows in self.dual.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.epoch, self.penalty = state["step"], state["epoch"], state["penalty"]
        for name, rows in self.copy.items():
            self.copy[name] = state["copy"][name].to(rows)
            self.dual[name] = state["dual"][name].to(rows)

    @torch.no_grad()
    def _draw(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """Add ρ·(W − F) + Y to the gradient."""
        tensors, now = tensors_of(self.task.model), self._rows()
        for group in self.groups:
            pull = self.rho * (now[group.name] - self.copy[group.name]) + self.dual[group.name]
            start = 0
            for slot in group.producers:
                weight = tensors[slot.param]
                index = torch.tensor(slot.index, device=weight.device)
                shape = weight.movedim(slot.dim, 0)[index].shape
                width = shape.numel() // group.size
                part = pull[:, start : start + width].reshape(shape).movedim(0, slot.dim)
                start += width
                if weight.grad is not None:
                    weight.grad.index_add_(slot.dim, index, part.to(weight.grad))

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.step += 1
        if self.step % self.period == 0 or self.step == self.steps:
            self._update()

    @torch.no_grad()
    def _update(self) -> None:
        """Update F and Y; λ of a layer is the smallest that sets its rows that are due to zero."""
        now = self._rows()
        target = {name: rows + self.dual[name] / self.rho for name, rows in now.items()}
        lengths = {name: rows.norm(dim=1).cpu() for name, rows in target.items()}
        ratio = self.task.config.target * min(1.0, self.step / (RISE * self.steps))
        due = choose(self.task, relative(lengths), ratio, global_ranking)
        self.penalty = 0.0
        for name, rows in target.items():
            longest = float(lengths[name][due[name]].max()) if bool(due[name].any()) else 0.0
            penalty = penalty_for(longest, self.proximal, self.rho)
            gentle = penalty_for(SHORTEN * float(lengths[name].mean()), self.proximal, self.rho)
            each = torch.where(due[name], penalty, min(penalty, gentle)).to(rows)
            self.copy[name] = self.proximal(rows, each, self.rho)
            self.copy[name][due[name].to(rows.device)] = 0  # exactly, despite rounding
            self.dual[name] += self.rho * (now[name] - self.copy[name])
            self.penalty = max(self.penalty, penalty)

    def _gone(self) -> Channels:
        return {name: (rows == 0).all(1).cpu() for name, rows in self.copy.items()}

    def _rows(self) -> dict[str, Tensor]:
        """The filters of every group as rows."""
        tensors, found = tensors_of(self.task.model), {}
        for group in self.groups:
            parts = []
            for slot in group.producers:
                weight = tensors[slot.param].detach().movedim(slot.dim, 0)
                index = torch.tensor(slot.index, device=weight.device)
                parts.append(weight[index].reshape(group.size, -1).float())
            found[group.name] = torch.cat(parts, 1)
        return found


def relative(lengths: Scores) -> Scores:
    """Row lengths in units of their layer's mean: layers of different fan-in become comparable."""
    return {name: length / length.mean().clamp(min=1e-30) for name, length in lengths.items()}


def plan(task: Task) -> PruningPlan:
    """Remove the filters that training set to zero: they are the shortest."""
    scores = relative(filter_scores(task, criteria.l2_norm))
    return without(task.graph, choose(task, scores, task.config.target, global_ranking))


def _method(name: str, proximal: Proximal) -> Method:
    def train(task: Task, optimizer: Optimizer) -> SSR:
        return SSR(task, optimizer, proximal)

    return Method(name, plan, train, from_baseline=True)


L21 = _method("ssr-l21", l21)
L20 = _method("ssr-l20", l20)
