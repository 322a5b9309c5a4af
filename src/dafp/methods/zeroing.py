"""Helpers of methods that zero filters: choose filters by a target, zero them, find zero ones."""

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
    """The groups of kind "filter": all groups except selection groups."""
    return [group for group in graph.groups if group.kind == "filter"]


def filter_scores(task: Task, criterion: Criterion) -> Scores:
    """The scores of filter groups only: groups without scores are kept whole."""
    scores = criterion(task.model, task.graph)
    return {group.name: scores[group.name] for group in filter_groups(task.graph)}


def choose(task: Task, scores: Scores, ratio: float, rule: Rule = uniform) -> Channels:
    """Flags of the channels to remove, lowest scores first, for the share `ratio` of the unit."""
    if ratio <= 0:
        return {name: torch.zeros(len(score), dtype=torch.bool) for name, score in scores.items()}
    plan = to_target(scores, task.graph, ratio, task.config.unit, rule, **task.floors)
    return {name: ~kept(plan, task.graph[name]) for name in scores}


def kept(plan: PruningPlan, group: Group) -> Tensor:
    flags = torch.zeros(group.size, dtype=torch.bool)
    flags[list(plan.keep.get(group.name, range(group.size)))] = True
    return flags


def without(graph: ChannelGraph, gone: Channels) -> PruningPlan:
    """The plan that removes these channels."""
    keep = {name: tuple((~flags).nonzero().flatten().tolist()) for name, flags in gone.items()}
    return PruningPlan(keep, {g.name: g.size for g in graph.groups})


def entries(slot: Slot, flags: Tensor, device: torch.device) -> Tensor:
    """The positions of the flagged channels in a slot."""
    places = torch.tensor(slot.index).view(len(flags), -1)[flags]
    return places.flatten().to(device)


def makers(graph: ChannelGraph, group: Group) -> list[Slot]:
    """The producers of a group, and their biases."""
    slots = list(group.producers)
    for slot in group.producers:
        bias = graph.label_index.shifts.get(slot.param)
        if bias and slot.dim == 0:
            slots.append(Slot(bias, 0, slot.index))
    return slots


@torch.no_grad()
def zero(model: nn.Module, slots: Mapping[str, list[Slot]], gone: Channels) -> None:
    """Set the entries of these channels in these slots to zero, in place."""
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
    """Flags of the channels whose entries in these slots are all zero."""
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
    """Flags of the filters that are zero, bias included."""
    slots = {group.name: makers(graph, group) for group in filter_groups(graph)}
    return all_zero(model, slots, graph)


@torch.no_grad()
def settle_norms(model: nn.Module, graph: ChannelGraph, gone: Channels) -> None:
    """After a zero filter, the output of a BN is constant: set β to this constant, and γ to 0.

    In eval mode the network computes the same. When the channel is removed, mean compensation then
    adds exactly this constant to its consumers.
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
