"""Apply a selection rule with the strength that meets a target."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..criteria.scores import Scores
from ..errors import PlanError, TargetError
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from .nearest_steps import nearest_steps
from .rules import (
    LowestFirst,
    RoundTo,
    Rule,
    allowed_width,
    check_scores,
    check_share,
    global_ranking,
    local_threshold,
    removal_counts,
    step_of,
)
from .score_per_cost import score_per_cost


@dataclass(frozen=True)
class Measure:
    """A unit that you define: its name, and the share of it that a completed plan removes."""

    name: str
    removed: Callable[[PruningPlan], float]


Step = list[tuple[str, int]]  # channels (group, channel) that are removed together


@dataclass(frozen=True)
class Choice:
    """A plan as flags, used while the strength of the rule is searched."""

    flags: list[Tensor]  # one boolean vector per group of the graph
    spare: Mapping[str, tuple[int, ...]]  # removed channels of a group, most important first

    def kept(self) -> int:
        """Number of channels to keep."""
        return sum(int(flag.sum()) for flag in self.flags)


def to_target(
    scores: Scores,
    graph: ChannelGraph,
    target: float = 0.5,
    unit: str | Measure = "filters",
    rule: Rule = local_threshold,
    *,
    weigh_cost: bool = False,
    min_channels: int = 1,
    round_to: RoundTo = 1,
) -> PruningPlan:
    """Apply a rule with the strength that removes the share `target`, to the nearest channel.

    Bisection on the strength of the rule (p or ratio) finds two neighbouring plans, one on each
    side of the target; channels are then removed one by one, lowest score first, from the first
    plan towards the second.

    Args:
        scores: group name -> one score per channel, from a criterion
        graph: the channel graph of the network, from `dafp.trace`
        target: share of the unit to remove
        unit: "filters" (of those that can be pruned), "params" or "macs" (of the whole network), or
            a `Measure`
        rule: `local_threshold`, `global_ranking`, `uniform`, or a function with their signature
        weigh_cost: divide each score by what its channel costs in that unit (`global_ranking` only)
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
        >>> graph = dafp.trace(model, torch.randn(1, 3, 8, 8))
        >>> scores = dafp.criteria.l1_norm(model, graph)
        >>> print(dafp.selection.to_target(scores, graph, target=0.5, unit="macs"))
        0: 8 → 4
        3: 8 → 7
        parameters 842 → 395
        multiply-adds 17,248 → 8,144
    """
    check_share("target", target)
    if not isinstance(unit, Measure) and unit not in ("filters", "params", "macs"):
        raise PlanError(f"unit={unit!r} is not known; choose 'filters', 'params' or 'macs'")
    if not callable(rule):
        raise PlanError(
            f"rule={rule!r} is not a rule; give a function, e.g. rule=dafp.selection.uniform"
        )
    check_scores(scores)
    everything = graph.flags(_nothing_removed(scores))  # raises if names or sizes differ
    if weigh_cost:
        if rule is not global_ranking or isinstance(unit, Measure) or unit == "filters":
            raise PlanError(
                "weigh_cost compares channels of different layers: it needs rule=global_ranking "
                "and unit='params' or 'macs'"
            )
        scores = score_per_cost(scores, graph, unit)
    choose = _choices(scores, graph, rule, min_channels, round_to)
    low, high = 0.0, 1 - 1e-9
    gentle, hard = Choice(everything, {}), choose(high)
    hardest, most = hard, _share(graph, hard, unit)
    if _short_of(graph, most, target, unit):
        unscored = sum(group.size for group in graph.groups if group.name not in scores)
        floors = hard.kept() - unscored
        raise TargetError(_why_unreachable(graph, floors, target, most, unit))
    for _ in range(50):  # a fixed number: equal scores and floors make the share jump
        if gentle.kept() - hard.kept() <= 1:
            break  # there is no plan between these two
        middle = (low + high) / 2
        choice = choose(middle)
        if _share(graph, choice, unit) < target:
            low, gentle = middle, choice
        else:
            high, hard = middle, choice
    multiple = step_of(round_to)
    steps = _steps(scores, graph, gentle, hard, multiple)
    later = _steps(scores, graph, hard, hardest, multiple) if multiple > 1 else []
    best = _nearest(graph, gentle, steps, later, target, unit)
    return graph.resolve(_plan(graph, best))


def removed_share(graph: ChannelGraph, plan: PruningPlan, unit: str | Measure) -> float:
    """The share of filters, params or macs that a plan, completed by `graph.resolve`, removes.

    Args:
        graph: the channel graph of the network, from `dafp.trace`
        plan: which channels to keep
        unit: "filters", "params", "macs" or a `Measure`

    Returns:
        A number between 0 and 1.
    """
    return _share(graph, Choice(graph.flags(plan), plan.spare), unit)


def reach(
    graph: ChannelGraph,
    unit: str,
    *,
    min_channels: int = 1,
    round_to: RoundTo = 1,
    kinds: Collection[str] = ("filter", "selection"),
) -> float:
    """The share that is removed if every group of these kinds keeps as few channels as allowed."""
    step = step_of(round_to)
    flags = []
    for group in graph.groups:
        least = allowed_width(group.size, 1, min_channels, step)
        flags.append(torch.arange(group.size) < (least if group.kind in kinds else group.size))
    return share_of_flags(graph, flags, unit)


def share_of_flags(graph: ChannelGraph, flags: list[Tensor], unit: str) -> float:
    """The share that is removed if these channels are kept (one boolean vector per group)."""
    return _share(graph, Choice(flags, {}), unit)


def _share(graph: ChannelGraph, choice: Choice, unit: str | Measure) -> float:
    if isinstance(unit, Measure):
        return unit.removed(graph.resolve(_plan(graph, choice)))
    flags = graph.balanced(choice.flags, choice.spare)
    if unit == "filters":
        pairs = zip(graph.groups, flags, strict=True)
        left = sum(int(flag.sum()) for group, flag in pairs if group.kind == "filter")
        return 1 - left / graph.filters if graph.filters else 0.0
    before, after = graph.whole, graph.predict(flags)
    return float(1 - getattr(after, unit) / max(1, getattr(before, unit)))


def _plan(graph: ChannelGraph, choice: Choice) -> PruningPlan:
    pairs = list(zip(graph.groups, choice.flags, strict=True))
    keep = {group.name: tuple(flag.nonzero().flatten().tolist()) for group, flag in pairs}
    return PruningPlan(keep, {group.name: group.size for group, _ in pairs}, choice.spare)


def _choices(
    scores: Scores, graph: ChannelGraph, rule: Rule, min_channels: int, round_to: RoundTo
) -> Callable[[float], Choice]:
    """Strength of the rule -> the channels that it keeps.

    The rules of dafp only say how many channels of each group to remove, so that scores are sorted
    once; a user's own rule has to return a plan every time.
    """
    counts = removal_counts(rule, scores)
    if counts is None:

        def from_plan(strength: float) -> Choice:
            plan = rule(scores, strength, min_channels=min_channels, round_to=step_of(round_to))
            return Choice(graph.flags(plan), plan.spare)

        return from_plan
    ranking = LowestFirst(scores, min_channels, round_to)

    def from_counts(strength: float) -> Choice:
        removed = ranking.removed(counts(strength))
        flags = []
        for group in graph.groups:
            flag = torch.ones(group.size, dtype=torch.bool)
            flag[list(removed.get(group.name, ()))] = False
            flags.append(flag)
        return Choice(flags, removed)

    return from_counts


def _nearest(
    graph: ChannelGraph,
    gentle: Choice,
    steps: list[Step],
    later: list[Step],
    target: float,
    unit: str | Measure,
) -> Choice:
    """Take steps until the target is nearest, and later ones that fit if the next is too wide."""
    numbers = {group.name: number for number, group in enumerate(graph.groups)}

    def after(taken: list[Step]) -> Choice:
        removed: dict[str, list[int]] = {}
        for name, channel in (one for step in taken for one in step):
            removed.setdefault(name, []).append(channel)
        flags, spare = list(gentle.flags), dict(gentle.spare)
        for name, channels in removed.items():  # the last one is the most important
            number = numbers[name]
            flags[number] = flags[number].clone()
            flags[number][channels] = False
            spare[name] = (*reversed(channels), *spare.get(name, ()))
        return Choice(flags, spare)

    def share(taken: list[Step]) -> float:
        return _share(graph, after(taken), unit)

    low, high = 0, len(steps)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if share(steps[:middle]) < target else (low, middle)
    found = [steps[:low], steps[:high]]
    if any(len(step) > 1 for step in steps[low:high]):
        found.append(nearest_steps([*steps, *later], low, _group_of, share, target))
    return after(min(found, key=lambda taken: abs(share(taken) - target)))


def _group_of(step: Step) -> str:
    return step[0][0]


def _steps(
    scores: Scores, graph: ChannelGraph, gentle: Choice, hard: Choice, multiple: int
) -> list[Step]:
    """Steps of (group, channel) that only `hard` removes, by score relative to the group's best.

    A step leads from a width to the next lower multiple.
    """
    numbers = {group.name: number for number, group in enumerate(graph.groups)}
    found = []
    for position, (name, score) in enumerate(scores.items()):
        number = numbers[name]
        values = score.tolist()
        best = max(values, default=0.0) or 1.0
        only_hard = gentle.flags[number] & ~hard.flags[number]
        rest = sorted((values[c] / best, c) for c in only_hard.nonzero().flatten().tolist())
        end = int(gentle.flags[number].sum()) % multiple or multiple
        while rest:
            found.append((rest[0][0], position, [(name, channel) for _, channel in rest[:end]]))
            rest, end = rest[end:], multiple
    return [step for _, _, step in sorted(found)]


def _short_of(graph: ChannelGraph, reach: float, target: float, unit: str | Measure) -> bool:
    if unit == "filters":
        return round(target * graph.filters) > round(reach * graph.filters)
    return target > reach + 1e-3


def _why_unreachable(
    graph: ChannelGraph, floors: int, target: float, reach: float, unit: str | Measure
) -> str:
    name = unit.name if isinstance(unit, Measure) else unit
    text = (
        f"target={target} of {name} cannot be reached: at most {reach:.4f} can be removed. "
        f"{floors} channels are kept by min_channels or round_to"
    )
    if graph.kept:
        most = max(graph.kept, key=lambda k: k.size)
        text += (
            f", and {sum(k.size for k in graph.kept)} filters are kept "
            f"(most in {most.name!r}: {most.reason})"
        )
    return text + (
        ". Ask for less, lower min_channels, or, where residual streams are kept, trace with "
        "residual='couple' (--residual couple)"
    )


def _nothing_removed(scores: Scores) -> PruningPlan:
    sizes = {name: score.numel() for name, score in scores.items()}
    return PruningPlan({name: tuple(range(size)) for name, size in sizes.items()}, sizes)
