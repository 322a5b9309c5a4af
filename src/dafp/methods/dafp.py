"""DAFP, the method of the paper: score |γ|·‖W‖, a threshold within each layer, automatic λ."""

from torch.optim import Optimizer

from ..criteria.table import criterion_named
from ..graph.plan import PruningPlan
from ..selection.rules import local_threshold
from ..selection.targets import to_target
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
    """Plan that meets the target; its threshold is close to p if training reached the target."""
    config = task.config
    scores = criterion_named(config.criterion)(task.model, task.graph)
    return to_target(scores, task.graph, config.target, config.unit, local_threshold)


METHOD = Method("dafp", plan, train)
