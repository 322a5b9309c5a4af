"""Prune a trained network as it is: by filter norms (Li et al., 2017), or by chance."""

from .. import criteria
from ..plan import PruningPlan
from ..selection import to_target, uniform
from .method import Method, Task


def _l1(task: Task) -> PruningPlan:
    scores = criteria.l1_norm(task.model, task.graph)
    return to_target(scores, task.graph, task.config.target, task.config.unit, uniform)


def _random(task: Task) -> PruningPlan:
    scores = criteria.random(task.model, task.graph, seed=task.config.seed)
    return to_target(scores, task.graph, task.config.target, task.config.unit, uniform)


L1_NORM = Method("l1-norm", _l1)
RANDOM = Method("random", _random)
