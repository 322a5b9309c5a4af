"""Widths by measured damage: remove channels where the outputs suffer least for what they save."""

from collections.abc import Callable
from operator import itemgetter

import torch
from torch import Tensor

from ..errors import PlanError, TargetError
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from .damage_table import DamageTable
from .nearest_steps import nearest_steps
from .rules import RoundTo, check_share, step_of
from .targets import Measure, removed_share
from .width_cost import WidthCost

_STEPS = 64  # a group is narrowed in at least this many steps, if it has so many channels


def least_damage(
    table: DamageTable,
    graph: ChannelGraph,
    target: float = 0.5,
    unit: str | Measure = "filters",
    *,
    min_channels: int = 1,
    round_to: RoundTo = 1,
) -> PruningPlan:
    """Remove, step by step, the channels with the least damage per unit saved.

    Args:
        table: the damage of every group, from `dafp.recovery.measure_damage`
        graph: the channel graph of the network, from `dafp.trace`
        target: share of the unit to remove
        unit: "filters" (of those that can be pruned), "params" or "macs" (of the whole network), or
            a `Measure`
        min_channels: minimum number of channels that every group keeps
        round_to: the number of kept channels is rounded up to a multiple of this; "auto": of 8

    Returns:
        The plan, completed by `graph.resolve`, with the predicted cost.

    Raises:
        TargetError: The target cannot be reached.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(),
        ...     nn.Conv2d(8, 2, 1),
        ... )
        >>> x = torch.randn(16, 3, 8, 8)
        >>> graph = dafp.trace(model, x)
        >>> scores = dafp.criteria.reconstruction_error(model, graph, [x])
        >>> table = dafp.recovery.measure_damage(model, graph, scores, [x])
        >>> half = dafp.selection.least_damage(table, graph, target=0.5, unit="macs")
        >>> round(half.after.macs / half.before.macs, 1)
        0.5
    """
    check_share("target", target)
    if not isinstance(unit, Measure) and unit not in ("filters", "params", "macs"):
        raise PlanError(f"unit={unit!r} is not known; choose 'filters', 'params' or 'macs'")
    known = {group.name: group.size for group in graph.groups}
    for group in table.groups:
        for name in group.names:
            if known.get(name) != group.size:
                raise PlanError(
                    f"the damage table has {group.size} channels of {name!r}, the graph "
                    f"{known.get(name, 'no such group')}; measure the damage of this network"
                )
    width_step = step_of(round_to)
    steps = _steps(table, graph, unit, min_channels, width_step)

    def share(taken: list[Step]) -> float:
        return removed_share(graph, _plan(table, graph, taken), unit)

    low, high = 0, len(steps)
    reached = share(steps)
    if reached < target - 1e-3:
        name = unit.name if isinstance(unit, Measure) else unit
        raise TargetError(
            f"target={target} of {name} cannot be reached: at most {reached:.4f} can be removed. "
            "Ask for less, lower min_channels or round_to, or, where residual streams are kept, "
            "trace with residual='couple' (--residual couple)"
        )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if share(steps[:middle]) < target else (low, middle)
    plans = [_plan(table, graph, steps[:low])]
    if width_step == 1:  # the last step may remove several channels; perhaps a part is enough
        number, most = steps[low] if low < len(steps) else (0, 0)
        for count in range(1, most):
            plans.append(_plan(table, graph, [*steps[:low], (number, count)]))
    else:  # the last step may be wide: later ones of other groups may come nearer
        taken = nearest_steps(steps, low, itemgetter(0), share, target)
        plans.append(_plan(table, graph, taken))
    plans.append(_plan(table, graph, steps[:high]))
    return min(plans, key=lambda plan: abs(removed_share(graph, plan, unit) - target))


Step = tuple[int, int]  # number of an entry of the table, channels to remove of each of its groups


def _steps(
    table: DamageTable, graph: ChannelGraph, unit: str | Measure, min_channels: int, round_to: int
) -> list[Step]:
    """All steps until every group is as narrow as allowed, in the order in which they are taken."""
    numbers = {group.name: n for n, group in enumerate(graph.groups)}
    members = [torch.tensor([numbers[name] for name in entry.names]) for entry in table.groups]
    saved = _savings(table, graph, unit)
    widths = torch.tensor([float(group.size) for group in graph.groups], dtype=torch.double)
    counts = [0] * len(table.groups)
    steps: list[Step] = []

    def next_step(n: int) -> int:
        """How many channels to remove next, so that the width is a multiple of round_to."""
        entry, floor = table.groups[n], max(1, min_channels)
        left = entry.size - counts[n]
        wanted = left - max(1, entry.size // _STEPS)
        wanted = min(wanted // round_to * round_to, left - 1)
        return left - wanted if wanted >= floor else 0

    while True:
        gain = saved(widths)
        best, best_price, best_step = -1, float("inf"), 0
        for n, entry in enumerate(table.groups):
            step = next_step(n)
            per_channel = float(gain[members[n]].sum())
            if not step or per_channel <= 0:
                continue
            price = (entry.at(counts[n] + step) - entry.at(counts[n])) / (step * per_channel)
            if price < best_price:
                best, best_price, best_step = n, price, step
        if best < 0:
            return steps
        counts[best] += best_step
        widths[members[best]] -= best_step
        steps.append((best, best_step))


def _savings(
    table: DamageTable, graph: ChannelGraph, unit: str | Measure
) -> Callable[[Tensor], Tensor]:
    """Widths -> what one channel less of each group saves.

    A `Measure` is asked once for each entry of the table, at half of its width.
    """
    if not isinstance(unit, Measure):
        return WidthCost(graph, unit).savings
    numbers = {group.name: n for n, group in enumerate(graph.groups)}
    found = torch.zeros(len(graph.groups), dtype=torch.double)
    for n, entry in enumerate(table.groups):
        half = max(1, entry.size // 2)
        share = unit.removed(_plan(table, graph, [(n, half)]))
        for name in entry.names:
            found[numbers[name]] = max(share, 1e-9) / half / len(entry.names)
    return lambda widths: found


def _plan(table: DamageTable, graph: ChannelGraph, steps: list[Step]) -> PruningPlan:
    counts = [0] * len(table.groups)
    for n, step in steps:
        counts[n] += step
    keep, spare = {}, {}
    for entry, count in zip(table.groups, counts, strict=True):
        for name, order in zip(entry.names, entry.order, strict=True):
            keep[name] = tuple(sorted(order[count:]))
            spare[name] = tuple(reversed(order[:count]))
    return graph.resolve(PruningPlan(keep, {}, spare))
