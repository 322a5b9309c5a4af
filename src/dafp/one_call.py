"""The whole way in one call."""

from typing import Any

from torch import nn

from .criteria.scores import Criterion
from .criteria.table import criterion_named
from .pruning.pruned_model import prune
from .selection.targets import to_target
from .tracing import trace


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
