"""Prune a network: resolve the plan, slice the tensors, verify against the masked model."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError, VerificationError
from ..graph.channel_graph import ChannelGraph, check_same_model
from ..graph.plan import PruningPlan
from ..graph.slicing import Slicing, slice_model, slicing_for
from ..network.calling import no_compilation, no_garbage_collection
from ..network.decisions import DecisionPath
from ..network.fingerprint import fingerprint
from ..network.model_copy import deep_copy
from .masked_norms import unmask_norms
from .masking import masked_while_running, zero_consumers
from .mean_compensation import compensate_means
from .repaired_graph import with_repaired_graph
from .verification import follows_path, verified, verify_trains


@dataclass(frozen=True)
class PruningRecord:
    """How a model was pruned. It is an attribute of the pruned model.

    `dafp.save` writes it to the file, without `source`, `positions` and `path`.
    """

    plan: PruningPlan
    base: str  # fingerprint, in float32, of the model before the first pruning
    source: str  # fingerprint of the model before the last pruning
    positions: dict[tuple[str, int], Tensor]  # kept in the last pruning, for optimizer state
    attributes: dict[str, dict[str, Any]]  # changed since the first pruning
    selections: tuple[str, ...]  # modules with an input selection
    path: DecisionPath | None = None  # the decisions on which the cost of the plan depends

    def __deepcopy__(self, memo: dict[int, Any]) -> "PruningRecord":
        return self  # it never changes: copies of a model share it

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "path": None}  # its operators cannot be pickled


def prune(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool = False
) -> nn.Module:
    """A smaller model of the same class, without the channels that the plan removes.

    Before it is returned, the result is verified against `mask(model, graph, plan)`.

    Args:
        model: the network that was traced; it does not change
        graph: its channel graph, from `dafp.trace`
        plan: which channels to keep
        compensate: add the mean of the removed channels, computed from γ and β, to the bias of
            their consumers (or to the running mean of the BN after them)

    Returns:
        The pruned model.

    Raises:
        PlanError: The plan does not fit the graph, or removes all channels of a group.
        VerificationError: The outputs of the pruned model differ from those of the masked model.
            The error names the groups because of which they do, and its `graph` keeps them.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)
        ... )
        >>> graph = dafp.trace(model, torch.randn(2, 1, 8, 8))
        >>> small = dafp.prune(model, graph, dafp.PruningPlan({"0": (0, 2)}))
        >>> small[0]
        Conv2d(1, 2, kernel_size=(3, 3), stride=(1, 1))
        >>> small[3]
        Conv2d(2, 2, kernel_size=(1, 1), stride=(1, 1))
    """
    with torch.inference_mode(False), no_garbage_collection(), no_compilation():
        check_same_model(model, graph)
        plan = _resolve(graph, plan)
        try:
            return _slice_and_verify(model, graph, plan, compensate)
        except VerificationError as error:

            def attempt(part: PruningPlan) -> None:
                _slice_and_verify(model, graph, part, compensate)

            raise with_repaired_graph(error, model, graph, plan, attempt) from error


def _resolve(graph: ChannelGraph, plan: PruningPlan) -> PruningPlan:
    """The completed plan; raise if a group would be empty."""
    plan = graph.resolve(plan)
    for name, kept in plan.keep.items():
        if not kept:
            raise PlanError(
                f"plan keeps no channel of {name!r}; a layer cannot be empty. Keep at least one "
                "(min_channels=1), or use mask() to look at what would remain"
            )
    return plan


def _slice_and_verify(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, compensate: bool
) -> nn.Module:
    """The pruned model, verified on the example of the graph if it has one."""

    def sliced() -> nn.Module:
        source = model
        if compensate:
            source = deep_copy(model)
            compensate_means(source, graph, plan)
        kept = graph.label_index.kept(graph.flags(plan))
        slicing = slicing_for(model, graph.label_index, kept)
        small = slice_model(source, slicing)
        unmask_norms(small)  # of a masked model that was given, as reconstruct returns it
        vars(small)["_dafp_pruning"] = _add_to_record(model, graph, plan, slicing)
        return small

    def masked() -> nn.Module:
        return zero_consumers(deep_copy(model), graph, plan, compensate)

    if graph.example is None:
        return sliced()
    small = follows_path(sliced, masked, graph.path) if graph.path is not None else None
    if small is None:
        running = partial(masked_while_running, model, graph, plan, compensate)
        small = verified(sliced, running, masked, graph.example)
    verify_trains(small, model, graph.example)
    return small


def plan_of(small: nn.Module) -> PruningPlan:
    """The plan that was applied to a pruned model.

    Args:
        small: the result of `dafp.prune`, or a pruned model that `dafp.load` read

    Returns:
        The plan, completed by `graph.resolve`, with the predicted cost.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
        >>> graph = dafp.trace(model, torch.randn(2, 1, 8, 8))
        >>> small = dafp.prune(model, graph, dafp.PruningPlan({"0": (0, 2)}))
        >>> print(dafp.plan_of(small))
        0: 4 → 2
        parameters 50 → 26
        multiply-adds 1,584 → 792
    """
    return pruning_record(small).plan


def pruning_record(small: nn.Module) -> PruningRecord:
    """The record of a pruned model; PlanError if it has none."""
    record = getattr(small, "_dafp_pruning", None)
    if not isinstance(record, PruningRecord):
        raise PlanError(
            f"this {type(small).__name__} was not pruned by dafp.prune (or lost its record by "
            "being rebuilt); there is no plan to show"
        )
    return record


def _add_to_record(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, slicing: Slicing
) -> PruningRecord:
    """The record of this pruning, added to that of earlier ones."""
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
    return PruningRecord(
        plan, base, graph.fingerprint, slicing.positions, attributes, chosen, graph.path
    )
