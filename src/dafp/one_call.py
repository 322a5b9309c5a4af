"""The whole way in one call."""

from typing import Any

from torch import nn

from . import criteria
from .criteria.weights import Criterion
from .errors import PlanError
from .pruning.pruned_model import prune
from .selection.rules import to_target
from .tracing import trace

DATA_FREE = ("dependency_aware", "shift_aware", "bn_scale", "l1_norm", "l2_norm",
             "geometric_median", "random")  # fmt: skip


def slim(
    model: nn.Module,
    example: Any,
    ratio: float = 0.5,
    unit: str = "filters",
    criterion: str | Criterion = "dependency_aware",
    residual: str = "keep",
) -> nn.Module:
    """Trace, score, choose, prune and verify: a model without the share `ratio` of `unit`."""
    graph = trace(model, example, residual=residual)
    scores = criterion_named(criterion)(model, graph)
    return prune(model, graph, to_target(scores, graph, ratio, unit))


def criterion_named(criterion: str | Criterion) -> Criterion:
    """A criterion by its name, or the function itself."""
    if callable(criterion):
        return criterion
    if criterion not in DATA_FREE:
        raise PlanError(
            f"criterion={criterion!r} is not known; choose one of {', '.join(DATA_FREE)}, or give "
            "a function of (model, graph)"
        )
    function: Criterion = getattr(criteria, criterion)
    return function
