"""Prune a trained network and rebuild its weights: elimination, measured widths, least squares."""

from torch import nn

from .. import criteria
from ..graph.plan import PruningPlan
from ..recovery.damage import measure_damage
from ..recovery.reconstruction import reconstruct
from ..selection.least_damage import least_damage
from .method import Method, Task

PER_CLASS = 100  # calibration images of every class, at most


def plan(task: Task) -> PruningPlan:
    """Choose channels by elimination, and widths by measured damage."""
    images = [x for x, _ in task.calibration_data(PER_CLASS)]
    scores = criteria.reconstruction_error(task.model, task.graph, images, seed=task.config.seed)
    table = measure_damage(task.model, task.graph, scores, images, logits=True)
    return least_damage(table, task.graph, task.config.target, task.config.unit, **task.floors)


def rebuild(task: Task, plan: PruningPlan) -> nn.Module:
    """Rebuild the consumers of removed channels by least squares."""
    images = [x for x, _ in task.calibration_data(PER_CLASS)]
    return reconstruct(task.model, task.graph, plan, images, seed=task.config.seed)


METHOD = Method("reconstruct", plan, rebuild=rebuild)
