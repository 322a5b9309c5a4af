"""Cut a plan out of a network, and hand it over only if it computes what the plan means."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph, check_same_model
from ..graph.plan import PruningPlan
from ..graph.slicing import Slicing, slice_model, slicing_for
from ..network.calling import no_garbage_collection
from ..network.fingerprint import fingerprint
from ..network.model_copy import deep_copy
from .masking import masked_while_running, zero_consumers
from .mean_compensation import compensate_means
from .verification import verified, verify_trains


@dataclass(frozen=True)
class PruningRecord:
    """What was done to a model; travels with it, and is what `save` writes into the header."""

    plan: PruningPlan
    base: str  # fingerprint, in float32, of the model it was cut from at first
    source: str  # fingerprint of the model it was cut from at last
    positions: dict[tuple[str, int], Tensor]  # of the last cut, for optimizer state
    attributes: dict[str, dict[str, Any]]  # since the first cut
    selections: tuple[str, ...]  # modules with an input selection

    def __deepcopy__(self, memo: dict[int, Any]) -> "PruningRecord":
        return self  # a value: copies of a model share it


def prune(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool = False
) -> nn.Module:
    """A smaller model of the same class; the original is untouched.

    The result is compared with `mask(model, graph, plan)` before it is returned: a model that
    computes anything else raises VerificationError instead.
    """
    with torch.inference_mode(False), no_garbage_collection():
        return _prune(model, graph, plan, compensate)


def _prune(model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool) -> nn.Module:
    check_same_model(model, graph)
    plan = graph.resolve(plan)
    for name, kept in plan.keep.items():
        if not kept:
            raise PlanError(
                f"plan keeps no channel of {name!r}; a layer cannot be empty. Keep at least one "
                "(min_channels=1), or use mask() to look at what would remain"
            )
    slicing = slicing_for(model, graph.label_index, graph.label_index.kept(graph.flags(plan)))

    def make() -> nn.Module:
        source = model
        if compensate:
            source = deep_copy(model)
            compensate_means(source, graph, plan)
        return slice_model(source, slicing)

    oracles = (
        lambda: masked_while_running(model, graph, plan, compensate),
        lambda: zero_consumers(deep_copy(model), graph, plan, compensate),
    )
    if graph.example is None:
        small = make()
    else:
        small = verified(make, *oracles, graph.example)
        verify_trains(small, model, graph.example)
    vars(small)["_dafp_pruning"] = _history(model, graph.fingerprint, plan, slicing)
    return small


def plan_of(small: nn.Module) -> PruningPlan:
    """The plan that was applied to a pruned model."""
    return pruning_record(small).plan


def pruning_record(small: nn.Module) -> PruningRecord:
    record = getattr(small, "_dafp_pruning", None)
    if not isinstance(record, PruningRecord):
        raise PlanError(
            f"this {type(small).__name__} was not pruned by dafp.prune (or lost its record by "
            "being rebuilt); there is no plan to show"
        )
    return record


def _history(model: nn.Module, source: str, plan: PruningPlan, slicing: Slicing) -> PruningRecord:
    """Add this cut to what was done before."""
    old = getattr(model, "_dafp_pruning", None)
    base = fingerprint(model, torch.float32)  # precision may change before it is saved
    attributes: dict[str, dict[str, Any]] = {}
    selections: tuple[str, ...] = ()
    if isinstance(old, PruningRecord):
        base, selections = old.base, old.selections
        attributes = {module: dict(values) for module, values in old.attributes.items()}
    for module, values in slicing.attributes.items():
        attributes.setdefault(module, {}).update(values)
    chosen = tuple(sorted({*selections, *slicing.selections}))
    return PruningRecord(plan, base, source, slicing.positions, attributes, chosen)
