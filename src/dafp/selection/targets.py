"""Apply a rule just so hard that a target is met."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..criteria.scores import Scores
from ..errors import PlanError, TargetError
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from .rules import Rule, check_scores, check_share, global_ranking, local_threshold


@dataclass(frozen=True)
class Measure:
    """A unit of one's own: its name, and the share of it that a legal plan removes."""

    name: str
    removed: Callable[[PruningPlan], float]


def to_target(
    scores: Scores,
    graph: ChannelGraph,
    target: float = 0.5,
    unit: str | Measure = "filters",
    rule: Rule = local_threshold,
    *,
    weigh_cost: bool = False,
    min_channels: int = 1,
    round_to: int = 1,
) -> PruningPlan:
    """Apply a rule just so hard that the share `target` of the unit goes, to the nearest channel.

    unit: "filters" (of those that can be pruned), "params" or "macs" (of the whole network), or
    a Measure.
    `weigh_cost` divides each score by what its channel costs in that unit, for global_ranking.
    """
    check_share("target", target)
    if not isinstance(unit, Measure) and unit not in ("filters", "params", "macs"):
        raise PlanError(f"unit={unit!r} is not known; choose 'filters', 'params' or 'macs'")
    if not callable(rule):
        raise PlanError(
            f"rule={rule!r} is no rule; give a function, e.g. rule=dafp.selection.uniform"
        )
    check_scores(scores)
    graph.flags(_nothing(scores))  # names and sizes must be the graph's
    if weigh_cost:
        if rule is not global_ranking or isinstance(unit, Measure) or unit == "filters":
            raise PlanError(
                "weigh_cost compares channels of different layers: it needs rule=global_ranking "
                "and unit='params' or 'macs'"
            )
        scores = _per_cost(scores, graph, unit)

    def at(strength: float) -> PruningPlan:
        return rule(scores, strength, min_channels=min_channels, round_to=round_to)

    low, high = 0.0, 1 - 1e-9
    gentle, hard = _nothing(scores), at(high)
    reach = removed_share(graph, hard, unit)
    if _short_of(graph, reach, target, unit):
        raise TargetError(_why_unreachable(graph, hard, target, reach, unit))
    for _ in range(50):  # ends by count: ties and floors make a step function of it
        if _kept_by(gentle) - _kept_by(hard) <= 1:
            break  # no plan lies between them
        middle = (low + high) / 2
        plan = at(middle)
        if removed_share(graph, plan, unit) < target:
            low, gentle = middle, plan
        else:
            high, hard = middle, plan
    by_group = round_to > 1  # then only whole steps of a group keep its width round
    return graph.resolve(_between(scores, graph, gentle, hard, target, unit, by_group))


def removed_share(graph: ChannelGraph, plan: PruningPlan, unit: str | Measure) -> float:
    """The share of filters, params or macs that a plan removes, once it is made legal."""
    flags = graph.balanced(graph.flags(plan), plan.spare)
    if unit == "filters":
        pairs = zip(graph.groups, flags, strict=True)
        left = sum(int(flag.sum()) for group, flag in pairs if group.kind == "filter")
        return 1 - left / max(1, graph.filters)
    if isinstance(unit, Measure):
        return unit.removed(graph.resolve(plan))
    before, after = graph.whole, graph.predict(flags)
    return float(1 - getattr(after, unit) / max(1, getattr(before, unit)))


def reach(graph: ChannelGraph, unit: str) -> float:
    """The share that goes if every group keeps a single channel."""
    sizes = {group.name: group.size for group in graph.groups}
    return removed_share(graph, PruningPlan(dict.fromkeys(sizes, (0,)), sizes), unit)


def _between(
    scores: Scores, graph: ChannelGraph, gentle: PruningPlan, hard: PruningPlan,
    target: float, unit: str | Measure, by_group: bool,
) -> PruningPlan:  # fmt: skip
    """Walk from one plan to the next harder one, channel by channel or group by group.

    Stop nearest to the target.
    """
    rest = []
    for position, (name, score) in enumerate(scores.items()):
        stays = set(hard.keep[name])
        top = float(score.max()) or 1.0
        rest += [
            (float(score[c]) / top, position, c, name) for c in gentle.keep[name] if c not in stays
        ]
    rest.sort()
    steps = [[one] for one in rest]
    if by_group:
        steps = [[one for one in rest if one[3] == name] for name in scores]
        steps = sorted(step for step in steps if step)

    def after(count: int) -> PruningPlan:
        keep = {name: set(kept) for name, kept in gentle.keep.items()}
        spare = {name: list(gone) for name, gone in gentle.spare.items()}
        for _, _, channel, name in (one for step in steps[:count] for one in step):
            keep[name].discard(channel)
            spare.setdefault(name, []).insert(0, channel)
        return PruningPlan(
            {name: tuple(sorted(kept)) for name, kept in keep.items()},
            gentle.sizes,
            {name: tuple(gone) for name, gone in spare.items()},
        )

    low, high = 0, len(steps)
    while high - low > 1:
        middle = (low + high) // 2
        if removed_share(graph, after(middle), unit) < target:
            low = middle
        else:
            high = middle
    return _nearest(graph, [after(low), after(high)], target, unit)


def _kept_by(plan: PruningPlan) -> int:
    return sum(len(kept) for kept in plan.keep.values())


def _nearest(
    graph: ChannelGraph, plans: list[PruningPlan], target: float, unit: str | Measure
) -> PruningPlan:
    return min(plans, key=lambda plan: abs(removed_share(graph, plan, unit) - target))


def _nothing(scores: Scores) -> PruningPlan:
    sizes = {name: s.numel() for name, s in scores.items()}
    return PruningPlan({name: tuple(range(size)) for name, size in sizes.items()}, sizes)


def _short_of(graph: ChannelGraph, reach: float, target: float, unit: str | Measure) -> bool:
    if unit == "filters":
        return round(target * graph.filters) > round(reach * graph.filters)
    return target > reach + 1e-3


def _why_unreachable(
    graph: ChannelGraph, hard: PruningPlan, target: float, reach: float, unit: str | Measure
) -> str:
    name = unit.name if isinstance(unit, Measure) else unit
    floors = sum(len(kept) for kept in hard.keep.values())
    text = (
        f"target={target} of {name} cannot be reached: at most {reach:.4f} goes. "
        f"{floors} channels are held by the floor of their group"
    )
    if graph.kept:
        most = max(graph.kept, key=lambda k: k.size)
        text += (
            f", and {sum(k.size for k in graph.kept)} filters are kept "
            f"(most in {most.name!r}: {most.reason})"
        )
    return text + (
        ". Ask for less, lower min_channels, or, where residual streams are kept, trace with "
        "residual='couple'"
    )


def _per_cost(scores: Scores, graph: ChannelGraph, unit: str) -> Scores:
    """Score of a channel, divided by the share of the network that goes with one such channel."""
    everything = [torch.ones(g.size, dtype=torch.bool) for g in graph.groups]
    whole = getattr(graph.whole, unit)
    weighed = {}
    for number, group in enumerate(graph.groups):
        if group.name not in scores:
            continue
        flags = list(everything)
        flags[number] = flags[number].clone()
        flags[number][0] = False
        saved = max(1, whole - getattr(graph.predict(flags), unit))
        weighed[group.name] = scores[group.name] / (saved / whole)
    return weighed
