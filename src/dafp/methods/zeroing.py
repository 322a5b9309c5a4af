"""The filters of a network as methods handle them: chosen to a share, zeroed, found again."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..criteria.scores import Criterion, Scores
from ..graph.channel_graph import ChannelGraph, Group, Slot
from ..graph.plan import PruningPlan
from ..network.named_tensors import tensors_of
from ..selection.rules import Rule, uniform
from ..selection.targets import to_target
from .method import Task

Channels = dict[str, Tensor]  # group -> a flag per channel, on the CPU


def filter_groups(graph: ChannelGraph) -> list[Group]:
    """The groups that filters make; selections of a residual stream are no filters."""
    return [group for group in graph.groups if group.kind == "filter"]


def filter_scores(task: Task, criterion: Criterion) -> Scores:
    """The scores of filters alone: what is not scored is kept."""
    scores = criterion(task.model, task.graph)
    return {group.name: scores[group.name] for group in filter_groups(task.graph)}


def choose(task: Task, scores: Scores, ratio: float, rule: Rule = uniform) -> Channels:
    """The lowest scores, so many that the share `ratio` of the configured unit goes."""
    if ratio <= 0:
        return {name: torch.zeros(len(score), dtype=torch.bool) for name, score in scores.items()}
    plan = to_target(scores, task.graph, ratio, task.config.unit, rule)
    return {name: ~kept(plan, task.graph[name]) for name in scores}


def kept(plan: PruningPlan, group: Group) -> Tensor:
    flags = torch.zeros(group.size, dtype=torch.bool)
    flags[list(plan.keep.get(group.name, range(group.size)))] = True
    return flags


def without(graph: ChannelGraph, gone: Channels) -> PruningPlan:
    """The plan that drops these channels."""
    keep = {name: tuple((~flags).nonzero().flatten().tolist()) for name, flags in gone.items()}
    return PruningPlan(keep, {g.name: g.size for g in graph.groups})


def entries(slot: Slot, flags: Tensor, device: torch.device) -> Tensor:
    """Where a slot holds the flagged channels."""
    places = torch.tensor(slot.index).view(len(flags), -1)[flags]
    return places.flatten().to(device)


def makers(graph: ChannelGraph, group: Group) -> list[Slot]:
    """The weights that make the channels of a group, and their biases."""
    slots = list(group.producers)
    for slot in group.producers:
        bias = graph.label_index.shifts.get(slot.param)
        if bias and slot.dim == 0:
            slots.append(Slot(bias, 0, slot.index))
    return slots


@torch.no_grad()
def zero(model: nn.Module, slots: Mapping[str, list[Slot]], gone: Channels) -> None:
    """Set what these slots hold of these channels to zero, in place."""
    tensors = tensors_of(model)
    for name, flags in gone.items():
        if bool(flags.any()):
            for slot in slots[name]:
                weight = tensors[slot.param]
                weight.index_fill_(slot.dim, entries(slot, flags, weight.device), 0)


def zero_filters(model: nn.Module, graph: ChannelGraph, gone: Channels) -> None:
    """Set these filters and their biases to zero, in place."""
    zero(model, {name: makers(graph, graph[name]) for name in gone}, gone)


@torch.no_grad()
def all_zero(model: nn.Module, slots: Mapping[str, list[Slot]], graph: ChannelGraph) -> Channels:
    """The channels of which these slots hold nothing but zeros."""
    tensors, found = tensors_of(model), {}
    for name, mine in slots.items():
        dead = torch.ones(graph[name].size, dtype=torch.bool)
        for slot in mine:
            weight = tensors[slot.param].detach().cpu().movedim(slot.dim, 0)
            rows = weight[torch.tensor(slot.index)].reshape(len(dead), -1)
            dead &= (rows == 0).all(1)
        found[name] = dead
    return found


def zeroed(model: nn.Module, graph: ChannelGraph) -> Channels:
    """The filters that are all zeros, whatever made them so."""
    slots = {group.name: makers(graph, group) for group in filter_groups(graph)}
    return all_zero(model, slots, graph)


@torch.no_grad()
def settle_norms(model: nn.Module, graph: ChannelGraph, gone: Channels) -> None:
    """Behind filters that are zero, a BN gives a constant: let it be β, and γ = 0.

    The network computes the same, and what is added to the consumers of such a channel, when it
    is removed, is this constant.
    """
    for name, flags in gone.items():
        for slot in graph[name].scales:
            owner, _, tensor = slot.param.rpartition(".")
            norm = model.get_submodule(owner)
            if not isinstance(norm, nn.modules.batchnorm._BatchNorm) or tensor != "weight":
                continue
            if norm.running_mean is None or norm.running_var is None:
                continue
            places = entries(slot, flags, norm.weight.device)
            spread = (norm.running_var[places] + norm.eps).sqrt()
            norm.bias[places] -= norm.weight[places] * norm.running_mean[places] / spread
            norm.weight[places] = 0
