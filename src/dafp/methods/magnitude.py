"""Prune a trained network as it is: by one criterion or another, or at random.

L1 norms: Li et al., 2017. Activation norms: Polyak and Wolf, 2015. The loss without each channel:
Zheng et al., 2015.
"""

from .. import criteria
from ..criteria.table import DATA_FREE, score_channels
from ..graph.plan import PruningPlan
from ..selection.rules import global_ranking, uniform
from . import dafp
from .method import Method, Task

PER_CLASS = 100  # images of every class for activation norms, at most


def _l1(task: Task) -> PruningPlan:
    scores = criteria.l1_norm(task.model, task.graph)
    return task.plan_by(scores, uniform)


def _random(task: Task) -> PruningPlan:
    scores = criteria.random(task.model, task.graph, seed=task.config.seed)
    return task.plan_by(scores, uniform)


def _activation_norm(task: Task) -> PruningPlan:
    scores = criteria.activation_norm(task.model, task.graph, task.calibration_data(PER_CLASS))
    return task.plan_by(scores, uniform)


def _loss_by_removal(task: Task) -> PruningPlan:
    scores = criteria.loss_by_removal(task.model, task.graph, task.calibration_data())
    return task.plan_by(scores, uniform)


def _one_shot(task: Task) -> PruningPlan:
    """Plan by the configured criterion; Taylor scores are ranked over all layers together."""
    config = task.config
    if config.criterion in DATA_FREE:
        return dafp.plan_to_target(task)
    scores = score_channels(config.criterion, task.model, task.graph, task.calibration_data())
    rule = global_ranking if config.criterion == "taylor" else uniform
    return task.plan_by(scores, rule)


L1_NORM = Method("l1-norm", _l1)
ONE_SHOT = Method("one-shot", _one_shot)
ACTIVATION_NORM = Method("activation-norm", _activation_norm)
LOSS_BY_REMOVAL = Method("loss-by-removal", _loss_by_removal)
RANDOM = Method("random", _random)
