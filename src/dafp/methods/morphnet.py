"""MorphNet (Gordon et al., 2018): shrink the scales by what their channels cost, then expand.

Sparse training from new weights penalises every |γ| by the cost that its channel causes now, in the
unit of the target, with the channels of other layers that are still alive. It removes more than the
target. The widths that are left are multiplied by one factor ω, the largest with which the network
meets the target, and that network is trained from new weights.
"""

import dataclasses

import torch
from torch import nn
from torch.optim import Optimizer

from ..errors import TrainingError
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..models import build
from ..network.model_info import info_of
from ..selection.amounts import amount
from ..selection.rules import RoundTo, allowed_width, global_ranking, step_of
from ..selection.targets import reach
from ..tracing import trace
from ..training.config import Config
from ..training.loop import TrainingHook
from .method import Method, Task
from .scale_shrinking import Costs, ScaleShrinking, weighed_scales, zero_scales
from .zeroing import choose, without

SHRUNK = 0.5  # what shrinking leaves, as a share of what the target leaves
TRIALS = 7  # widths of a wider network that are tried


def train(task: Task, optimizer: Optimizer) -> TrainingHook:
    _refuse(task)
    return ScaleShrinking(
        task, optimizer, shrink_target(task), lambda: costs_now(task.model, task.graph, task)
    )


def plan(task: Task) -> PruningPlan:
    """Remove filters by |γ|/cost, zeros first, until the target of shrinking is met."""
    scores = weighed_scales(task, costs_now(task.model, task.graph, task))
    return without(task.graph, choose(task, scores, shrink_target(task), global_ranking))


def shrink_target(task: Task) -> float:
    """The share that shrinking removes: SHRUNK of what the target leaves is left."""
    config = task.config
    share = 1 - SHRUNK * (1 - config.target)
    most = reach(task.graph, config.unit, **task.floors, kinds=("filter",))
    return share if share < most else config.target


def costs_now(model: nn.Module, graph: ChannelGraph, task: Task) -> Costs:
    """What one more channel of each group costs, where channels of scale zero are gone."""
    unit = task.config.unit
    flags = graph.flags(without(graph, zero_scales(model, graph)))
    now, found = graph.predict(flags), {}
    for number, group in enumerate(graph.groups):
        if group.kind != "filter":
            continue
        fewer = list(flags)
        fewer[number] = flags[number].clone()
        fewer[number][int(flags[number].nonzero()[0])] = False
        left = graph.predict(fewer)
        saved = now.params - left.params if unit == "params" else now.macs - left.macs
        found[group.name] = 1.0 if unit == "filters" else max(1.0, saved)
    return found


def expand(task: Task, shrunk: PruningPlan) -> tuple[Task, PruningPlan]:
    """A wider network of new weights, and the plan that leaves it ω times the shrunk widths.

    Returns:
        The task with the wider network and its graph, and the completed plan.
    """
    unit = task.config.unit
    budget = amount(task.graph, unit) * (1 - task.config.target)
    low, high = 1.0, max(1.0, budget / max(1, amount(task.graph, unit, shrunk)))
    for _ in range(TRIALS):
        middle = (low + high) / 2
        graph = _wider(task, middle).graph
        if amount(graph, unit, _first(graph, scaled_widths(graph, shrunk))) <= budget:
            low = middle
        else:
            high = middle
    wider = _wider(task, low)
    widths = scaled_widths(wider.graph, shrunk)
    return wider, filled_up(wider.graph, widths, budget, unit, **task.floors)


def scaled_widths(graph: ChannelGraph, shrunk: PruningPlan) -> dict[str, float]:
    """The widths of a plan for another width of the same network; not rounded."""
    return {
        group.name: len(shrunk.keep[group.name]) / shrunk.sizes[group.name] * group.size
        for group in graph.groups
    }


def filled_up(
    graph: ChannelGraph,
    widths: dict[str, float],
    budget: float,
    unit: str,
    *,
    min_channels: int = 1,
    round_to: RoundTo = 1,
) -> PruningPlan:
    """Widths rounded down, and up again within the budget, the largest remainders first."""
    step = step_of(round_to)
    whole = {
        name: float(allowed_width(graph[name].size, int(width) // step * step, min_channels, step))
        for name, width in widths.items()
    }
    for name in sorted(widths, key=lambda name: whole[name] - widths[name]):
        more = {**whole, name: min(whole[name] + step, graph[name].size)}
        if amount(graph, unit, _first(graph, more)) <= budget:
            whole = more
    return graph.resolve(_first(graph, whole))


def _first(graph: ChannelGraph, widths: dict[str, float]) -> PruningPlan:
    """Keep the first channels of every group: the weights are new, all are alike."""
    keep = {name: tuple(range(max(1, int(width)))) for name, width in widths.items()}
    return PruningPlan(keep, {group.name: group.size for group in graph.groups})


def _wider(task: Task, factor: float) -> Task:
    """The task with a network of new weights that is wider by this factor."""
    info, config = info_of(task.model), task.config
    torch.manual_seed(config.seed)
    arguments = {**info.arguments, "width": info.arguments["width"] * factor}
    model = build(info.builder, **arguments)
    example = torch.zeros(1, *task.data.shape)
    graph = trace(model, example, residual=config.residual, keep=config.keep)
    return dataclasses.replace(task, model=model, graph=graph)


def _refuse(task: Task) -> None:
    if "width" not in info_of(task.model).arguments:
        raise TrainingError(
            f"morphnet builds a wider network, and {task.config.model!r} has no argument width: "
            "take a built-in network (vgg16, resnet20, preresnet20, …), or another method"
        )
    default = Config()
    for name in ("repair", "after", "weights"):
        value = getattr(task.config, name)
        if value != getattr(default, name):
            raise TrainingError(
                f"{name}={value!r} has no place in morphnet, which trains a new network of the "
                "widths that it found; leave it out"
            )


METHOD = Method("morphnet", plan, train, expand=expand)
