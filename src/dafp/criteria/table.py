"""The criteria by name: the function, and what it needs besides the model and its graph."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph
from . import weights
from .activation_norm import activation_norm
from .elimination import reconstruction_error
from .lasso import lasso
from .loss_by_removal import loss_by_removal
from .scores import Criterion, Scores
from .taylor import taylor


@dataclass(frozen=True)
class NamedCriterion:
    """A criterion function and the calibration data that it needs."""

    function: Callable[..., Scores]
    needs: str = "nothing"  # or "inputs", or "labels": batches of (input, target)
    uses: str = ""  # the same, if data is not needed but makes it better


CRITERIA = {
    "dependency_aware": NamedCriterion(weights.dependency_aware),
    "shift_aware": NamedCriterion(weights.shift_aware, uses="inputs"),
    "bn_scale": NamedCriterion(weights.bn_scale),
    "l1_norm": NamedCriterion(weights.l1_norm),
    "l2_norm": NamedCriterion(weights.l2_norm),
    "geometric_median": NamedCriterion(weights.geometric_median),
    "random": NamedCriterion(weights.random),
    "taylor": NamedCriterion(taylor, needs="labels"),
    "reconstruction_error": NamedCriterion(reconstruction_error, needs="inputs"),
    "activation_norm": NamedCriterion(activation_norm, needs="inputs"),
    "loss_by_removal": NamedCriterion(loss_by_removal, needs="labels"),
    "lasso": NamedCriterion(lasso, needs="inputs"),
}
DATA_FREE = tuple(name for name, entry in CRITERIA.items() if entry.needs == "nothing")


def score_channels(
    criterion: str | Criterion,
    model: nn.Module,
    graph: ChannelGraph,
    batches: Iterable[Any] | None = None,
) -> Scores:
    """Scores by the criterion of this name, or by a function of (model, graph).

    Raises PlanError if the criterion needs data and there is none.
    """
    if callable(criterion):
        return criterion(model, graph)
    entry = _entry(criterion)
    if batches is None or not (entry.uses or entry.needs != "nothing"):
        _refuse_without_data(criterion, entry)
        return entry.function(model, graph)
    return entry.function(model, graph, batches)


def criterion_named(criterion: str | Criterion) -> Criterion:
    """A criterion that needs no data by its name, or the function itself."""
    if callable(criterion):
        return criterion
    entry = _entry(criterion)
    _refuse_without_data(criterion, entry)
    return cast(Criterion, entry.function)


def _entry(name: str) -> NamedCriterion:
    if name not in CRITERIA:
        raise PlanError(
            f"criterion={name!r} is not known; choose one of {', '.join(CRITERIA)}, or give "
            "a function of (model, graph)"
        )
    return CRITERIA[name]


def _refuse_without_data(name: str, entry: NamedCriterion) -> None:
    if entry.needs != "nothing":
        what = "labelled calibration images" if entry.needs == "labels" else "calibration images"
        raise PlanError(
            f"criterion={name!r} needs data: give {what}, or choose one of {', '.join(DATA_FREE)}"
        )
