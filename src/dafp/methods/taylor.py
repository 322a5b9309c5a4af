"""Iterative Taylor pruning (Molchanov et al., 2019): gates after every BN, closed in training.

A gate z = 1 multiplies each channel after its BN. Its effect on the loss follows from the gradients
that a training step computes anyway: z·∂L/∂z = γ·∂L/∂γ + β·∂L/∂β.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..criteria.scores import Scores
from ..graph.channel_graph import ChannelGraph, Slot
from ..graph.plan import PruningPlan
from ..network.named_tensors import tensors_of
from ..selection.rules import global_ranking
from ..selection.targets import removed_share
from .method import Method, Task
from .zeroing import Channels, all_zero, choose, filter_groups, makers, without, zero

MOMENTUM = 0.9  # of the scores, from one pruning to the next
PERIOD = 30  # batches between two prunings
GATES = 100  # closed by one pruning, at most, if the training is long enough
PRUNINGS = 10  # at least, so that a small network is pruned gradually too


class Taylor:
    """Scores the gates at every step, and closes the least important ones every `period` steps."""

    def __init__(self, task: Task, optimizer: Optimizer) -> None:
        self.task = task
        sizes = {group.name: group.size for group in filter_groups(task.graph)}
        everything = {name: torch.arange(1.0, size + 1) for name, size in sizes.items()}
        # raises early if the target cannot be reached
        choose(task, everything, task.config.target, global_ranking)
        self.period, self.prunings = timetable(
            task.config.sparse.epochs * task.data.steps("train", task.config.batch_size),
            round(task.config.target * task.graph.filters),
        )
        self.step = self.epoch = 0
        self.sums = {name: torch.zeros(size) for name, size in sizes.items()}
        self.scores: Scores = {}
        self.gone: Channels = {n: torch.zeros(size, dtype=torch.bool) for n, size in sizes.items()}
        self.slots = gates(task.graph)
        optimizer.register_step_pre_hook(self._accumulate)
        optimizer.register_step_post_hook(self._after_step)

    def end_epoch(self) -> Mapping[str, Any]:
        self.epoch += 1
        late = self.step // self.period < self.prunings
        if late and self.epoch == self.task.config.sparse.epochs:  # fp16 skipped steps
            self._prune(self.prunings)
            zero(self.task.model, self.slots, self.gone)
        share = removed_share(
            self.task.graph, without(self.task.graph, self.gone), self.task.config.unit
        )
        return {"sparsity": share, "target": self.task.config.target}

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": self.epoch,
            "sums": {name: value.clone() for name, value in self.sums.items()},
            "scores": {name: value.clone() for name, value in self.scores.items()},
            "gone": {name: value.clone() for name, value in self.gone.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.epoch = state["step"], state["epoch"]
        self.sums, self.scores = dict(state["sums"]), dict(state["scores"])
        self.gone = dict(state["gone"])

    def _accumulate(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        for name, change in gate_changes(self.task.model, self.task.graph, self.slots).items():
            self.sums[name] += change.square()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.step += 1
        done, rest = divmod(self.step, self.period)
        if rest == 0 and done <= self.prunings:
            self._prune(done)
        zero(self.task.model, self.slots, self.gone)

    def _prune(self, number: int) -> None:
        """Update the scores by those of the last period, and close the gates that are due."""
        for name, total in self.sums.items():
            new, old = total / self.period, self.scores.get(name)
            self.scores[name] = new if old is None else MOMENTUM * old + (1 - MOMENTUM) * new
            self.sums[name] = torch.zeros_like(total)
        due = self.task.config.target * number / self.prunings
        ranked = {  # closed gates rank below open gates of score 0
            name: torch.where(self.gone[name], 0.0, score.clamp(min=torch.finfo().tiny))
            for name, score in self.scores.items()
        }
        chosen = choose(self.task, ranked, due, global_ranking)
        self.gone = {name: self.gone[name] | flags for name, flags in chosen.items()}


def timetable(steps: int, gates: int) -> tuple[int, int]:
    """(steps between two prunings, number of prunings) to close `gates` gates within `steps` steps.

    The pace is that of the original if the training is long enough, and faster if it is short.
    """
    period = max(1, min(PERIOD, steps // PRUNINGS))
    return period, min(steps // period, max(PRUNINGS, math.ceil(gates / GATES)))


def gates(graph: ChannelGraph) -> dict[str, list[Slot]]:
    """The slots that gate a filter group: scales and shifts; without a BN, filters and biases."""
    found = {}
    for group in filter_groups(graph):
        slots = list(group.scales)
        for slot in group.scales:
            shift = graph.label_index.shifts.get(slot.param)
            if shift:
                slots.append(Slot(shift, 0, slot.index))
        found[group.name] = slots or makers(graph, group)
    return found


@torch.no_grad()
def gate_changes(
    model: nn.Module, graph: ChannelGraph, slots: Mapping[str, list[Slot]]
) -> dict[str, Tensor]:
    """z·∂L/∂z of every gate, from the current gradients."""
    tensors, found = tensors_of(model), {}
    for name, mine in slots.items():
        total = torch.zeros(graph[name].size)
        for slot in mine:
            weight = tensors[slot.param]
            if weight.grad is not None:
                change = (weight * weight.grad).float().cpu().movedim(slot.dim, 0)
                rows = change[torch.tensor(slot.index)]
                total += rows.reshape(len(total), -1).sum(1)
        found[name] = total
    return found


def plan(task: Task) -> PruningPlan:
    """Remove exactly the channels whose gate is closed: their γ and β are zero."""
    return without(task.graph, all_zero(task.model, gates(task.graph), task.graph))


METHOD = Method("taylor", plan, Taylor, from_baseline=True)
