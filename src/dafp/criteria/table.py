"""The criteria by name: the function, and what it needs besides the model and its graph."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from ..errors import PlanError
from . import weights
from .scores import Criterion, Scores
from .taylor import taylor


@dataclass(frozen=True)
class NamedCriterion:
    """A criterion function and the data that it needs."""

    function: Callable[..., Scores]
    needs: str = "nothing"  # or "inputs", or "labels": batches of (input, target)


CRITERIA = {
    "dependency_aware": NamedCriterion(weights.dependency_aware),
    "shift_aware": NamedCriterion(weights.shift_aware),
    "bn_scale": NamedCriterion(weights.bn_scale),
    "l1_norm": NamedCriterion(weights.l1_norm),
    "l2_norm": NamedCriterion(weights.l2_norm),
    "geometric_median": NamedCriterion(weights.geometric_median),
    "random": NamedCriterion(weights.random),
    "taylor": NamedCriterion(taylor, needs="labels"),
}
DATA_FREE = tuple(name for name, entry in CRITERIA.items() if entry.needs == "nothing")


def criterion_named(criterion: str | Criterion) -> Criterion:
    """A criterion by its name, or the function itself."""
    if callable(criterion):
        return criterion
    if criterion not in DATA_FREE:
        raise PlanError(
            f"criterion={criterion!r} is not known; choose one of {', '.join(DATA_FREE)}, or give "
            "a function of (model, graph)"
        )
    return cast(Criterion, CRITERIA[criterion].function)
