"""DAFP, the method of the paper: score |γ|·‖W‖, a threshold within each layer, automatic λ."""

import torch
from torch.optim import Optimizer

from ..criteria.scores import Scores
from ..criteria.table import criterion_named
from ..graph.plan import PruningPlan
from ..selection.rules import local_threshold
from ..sparse_training.training import SparseTraining
from .method import Method, Task


def train(task: Task, optimizer: Optimizer) -> SparseTraining:
    config = task.config
    return SparseTraining(
        task.model,
        task.graph,
        optimizer,
        target=config.target,
        epochs=config.sparse.epochs,
        p=config.p,
        criterion=config.criterion,
        step=config.step,
        unit=config.unit,
    )


def plan(task: Task) -> PruningPlan:
    """The plan at p (Eq. 6), or with `move_p` at the p that meets the target.

    Both are close to each other if sparse training reached the target.
    """
    config = task.config
    if config.move_p:
        return plan_to_target(task)
    return task.graph.resolve(local_threshold(_scores(task), config.p, **task.floors))


def plan_to_target(task: Task) -> PruningPlan:
    """The plan that meets the target, by a threshold within each layer, or the configured rule."""
    return task.plan_by(_scores(task), local_threshold)


def threshold(task: Task, plan: PruningPlan) -> float:
    """The p of a plan: the largest score of a removed channel, as a share of its layer's best."""
    found = 0.0
    for name, score in _scores(task).items():
        removed = torch.ones(len(score), dtype=torch.bool, device=score.device)
        removed[list(plan.keep.get(name, range(len(score))))] = False
        if bool(removed.any()):
            found = max(found, float(score[removed].max() / score.max().clamp(min=1e-30)))
    return found


def _used_p(task: Task, plan: PruningPlan) -> float | None:
    if task.rule(local_threshold) is not local_threshold:
        return None
    return threshold(task, plan) if task.config.move_p else task.config.p


def _scores(task: Task) -> Scores:
    return criterion_named(task.config.criterion)(task.model, task.graph)


METHOD = Method("dafp", plan, train, threshold=_used_p)
