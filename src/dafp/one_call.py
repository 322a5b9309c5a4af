"""`dafp.slim`: trace, score, select, prune and verify in one call."""

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
    """Trace, score, select, prune and verify: return a model without the share `ratio` of `unit`.

    Args:
        model: the network; it is not changed.
        example: an input of the network. A tuple is passed as `model(*example)`, a dict as
            `model(**example)`.
        ratio: the share of `unit` to remove, between 0 and 1.
        unit: what `ratio` is a share of: `"filters"`, `"params"` or `"macs"`.
        criterion: the name of a criterion that needs no data, or a function of model and graph.
        residual: `"keep"` leaves residual streams whole, `"couple"` prunes them jointly.

    Returns:
        A new, smaller model of the same class.

    Examples:
        >>> model = dafp.models.build("vgg11", width=0.25)
        >>> small = dafp.slim(model, torch.zeros(1, 3, 32, 32), ratio=0.5)
        >>> plan = dafp.plan_of(small)
        >>> sum(plan.sizes.values()), sum(len(kept) for kept in plan.keep.values())
        (688, 344)
    """
    graph = trace(model, example, residual=residual)
    scores = criterion_named(criterion)(model, graph)
    return prune(model, graph, to_target(scores, graph, ratio, unit))
