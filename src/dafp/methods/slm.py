"""Network Slimming (Liu et al., 2017), and its ablation with the dependency-aware score."""

from collections.abc import Mapping
from typing import Any

from torch.optim import Optimizer

from .. import criteria
from ..criteria.scores import Criterion
from ..graph.plan import PruningPlan
from ..selection.rules import global_ranking, local_threshold
from ..selection.targets import removed_share, to_target
from ..sparse_training.scale_penalty import ScalePenalty
from .method import Method, Task

PENALTY = {"vgg": 1e-4, "other": 1e-5}  # λ of the released code
LEVEL = 0.01  # p at which P is reported, as in the paper


class Slimming:
    """Penalises all scales with a fixed λ.

    Several methods share this training at any target, so every epoch reports P by both scores.
    """

    def __init__(self, task: Task, optimizer: Optimizer) -> None:
        self.task = task
        scales = ScalePenalty(task.model, task.graph, optimizer)
        scales.set_penalties(scales.penalised * penalty_of(task))

    def end_epoch(self) -> Mapping[str, Any]:
        graph, columns = self.task.graph, {"penalty": penalty_of(self.task)}
        for criterion in (criteria.bn_scale, criteria.dependency_aware):
            chosen = local_threshold(criterion(self.task.model, graph), LEVEL)
            columns[f"sparsity_{criterion.__name__}"] = removed_share(graph, chosen, "filters")
        return columns

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to restore: λ is fixed."""


def penalty_of(task: Task) -> float:
    """λ: `config.step` if that is a number, else the λ of the released code."""
    if not isinstance(task.config.step, str):
        return task.config.step
    return PENALTY["vgg" if "vgg" in task.config.model else "other"]


def _method(name: str, criterion: Criterion) -> Method:
    def plan(task: Task) -> PruningPlan:
        """Rank all channels; a layer may lose all its filters, as in the original."""
        graph, config = task.graph, task.config
        scores = criterion(task.model, graph)
        floors = {**task.floors, "min_channels": config.min_channels}
        free = floors == {"min_channels": 0, "round_to": 1}
        if config.unit == "filters" and free:  # share of all scales, with selections: the original
            return global_ranking(scores, config.target, min_channels=0)
        return to_target(scores, graph, config.target, config.unit, global_ranking, **floors)

    return Method(name, plan, Slimming, shared_training="slm", decays_lr=True)


METHOD = _method("slm", criteria.bn_scale)
METHOD_DA = _method("slm+da", criteria.dependency_aware)
