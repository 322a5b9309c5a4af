"""Search the widths of all layers by evolution, guided to the knee (Zhou et al., 2019).

An individual is a vector of exponents, one per group: at strength s, group g loses the share
1 − (1 − s)^{a_g} of its channels, lowest scores first. s is chosen so that the target is met, so
all individuals remove the same share of the unit. Two objectives are minimised: the loss after
recalibration, and the cost in a second unit.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..criteria.scores import Scores
from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph, check_same_model
from ..graph.plan import PruningPlan
from ..network.model_copy import deep_copy
from ..network.named_tensors import tensors_of
from ..pruning.masking import zero_consumers
from ..selection.rules import RoundTo, Rule, allowed_width, step_of
from ..selection.targets import removed_share, to_target
from .recalibration import recalibrate

LOWEST, HIGHEST = 0.05, 8.0  # exponents
SPREAD = 0.6  # standard deviation of the logarithm of a mutation
SECOND = {"filters": "macs", "params": "macs", "macs": "params"}


@dataclass(frozen=True)
class Individual:
    """A vector of exponents, its plan, and its two objectives: smaller is better."""

    exponents: tuple[float, ...]
    plan: PruningPlan
    objectives: tuple[float, float]


def search_widths(
    model: nn.Module,
    graph: ChannelGraph,
    scores: Scores,
    loss: Callable[[nn.Module], float],
    target: float = 0.5,
    unit: str = "filters",
    *,
    second: str | None = "",
    batches: Iterable[Any] = (),
    min_channels: int = 1,
    round_to: RoundTo = 1,
    population: int = 16,
    generations: int = 10,
    seed: int = 0,
    done: Callable[[int, int], None] = lambda number, total: None,
) -> PruningPlan:
    """Search how many channels of every group to remove; which ones, the scores decide.

    A population of width vectors is scored on masked copies of the network, with BN recalibrated.
    Parents are chosen by non-dominated sorting and, among equals, by the Manhattan distance to the
    ideal point, which guides the search to the knee; the knee of the last front is the result.

    Args:
        model: the network that was traced; it is not changed
        graph: its channel graph, from `dafp.trace`
        scores: group name -> one score per channel, from a criterion
        loss: function of a model that returns a number, lower is better: the loss on validation
            data, or one minus the accuracy
        target: share of the unit to remove; every individual meets it
        unit: "filters", "params" or "macs"
        second: unit of the second objective, the share that is left: by default "params" with
            unit="macs", otherwise "macs". None: only the loss counts
        batches: calibration data for BN statistics; without any, they stay as they are
        min_channels: minimum number of channels that every group keeps
        round_to: the number of kept channels is rounded up to a multiple of this; "auto": of 8
        population: number of individuals, at least 4
        generations: number of generations after the first
        seed: seed of the search
        done: called with (number, total) after every generation

    Returns:
        The plan, completed by `graph.resolve`.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)
        ... )
        >>> x = torch.randn(8, 1, 8, 8)
        >>> graph = dafp.trace(model, x)
        >>> goal = model(x).detach()
        >>> plan = dafp.recovery.search_widths(
        ...     model, graph, dafp.criteria.l1_norm(model, graph),
        ...     lambda small: float((small(x).detach() - goal).square().mean()),
        ...     population=4, generations=2,
        ... )
        >>> sum(len(kept) for kept in plan.keep.values())
        4
    """
    check_same_model(model, graph)
    if population < 4 or generations < 0:
        raise PlanError(
            f"population={population} and generations={generations}: the search needs a population "
            "of at least 4, and generations must not be negative"
        )
    second = SECOND.get(unit, "") if second == "" else second
    if second not in ("filters", "params", "macs", None):
        raise PlanError(
            f"second={second!r} is not known; choose 'filters', 'params', 'macs' or None"
        )
    names = [group.name for group in graph.groups if group.name in scores]
    draw = torch.Generator().manual_seed(seed)
    data, work, tensors = list(batches), deep_copy(model).eval(), tensors_of(model)
    known: dict[tuple[tuple[int, ...], ...], tuple[float, float]] = {}

    def score(plan: PruningPlan) -> tuple[float, float]:
        zero_consumers(work, graph, plan, compensate=False)
        if data:
            recalibrate(work, data)
        value = loss(work)
        with torch.no_grad():
            for name, tensor in tensors_of(work).items():
                tensor.copy_(tensors[name])
        if not isinstance(value, (int, float)) or not math.isfinite(value):
            raise PlanError(
                f"the loss of a width search is {value!r}; it gets a model and must return a "
                "finite number, lower is better"
            )
        return float(value), 0.0 if second is None else 1 - removed_share(graph, plan, second)

    def individual(exponents: Sequence[float]) -> Individual:
        rule = rule_of(dict(zip(names, exponents, strict=True)))
        plan = to_target(
            scores, graph, target, unit, rule, min_channels=min_channels, round_to=round_to
        )
        key = tuple(plan.keep[name] for name in names)
        if key not in known:
            known[key] = score(plan)
        return Individual(tuple(exponents), plan, known[key])

    def random_one() -> list[float]:
        return [_mutated(1.0, 1.5 * SPREAD, draw) for _ in names]

    people = [individual([1.0] * len(names))]
    people += [individual(random_one()) for _ in range(population - 1)]
    for number in range(generations):
        ranks = ranked([one.objectives for one in people])
        children = []
        for _ in range(population):
            a, b = (people[_tournament(ranks, draw)].exponents for _ in range(2))
            children.append(individual(_child(a, b, draw)))
        both = list({one.plan.to_json(): one for one in [*people, *children]}.values())
        order = ranked([one.objectives for one in both])
        people = [one for _, one in sorted(zip(order, both, strict=True), key=lambda p: p[0])]
        people = people[:population]
        done(number + 1, generations)
    front = fronts([one.objectives for one in people])[0]
    return people[front[knee([people[place].objectives for place in front])]].plan


def rule_of(exponents: dict[str, float]) -> Rule:
    """The rule by which group g loses the share 1 − (1 − s)^{a_g} of its channels."""

    def rule(
        scores: Scores, strength: float, *, min_channels: int = 1, round_to: RoundTo = 1
    ) -> PruningPlan:
        keep, sizes = {}, {}
        for name, score in scores.items():
            size = len(score)
            left = round(size * (1 - strength) ** exponents[name])
            left = allowed_width(size, max(left, 1), min_channels, step_of(round_to))
            order = score.argsort(descending=True, stable=True)
            keep[name] = tuple(sorted(order[:left].tolist()))
            sizes[name] = size
        return PruningPlan(keep, sizes)

    return rule


def fronts(objectives: Sequence[tuple[float, float]]) -> list[list[int]]:
    """Non-dominated sorting: the places of the first front, of the second, and so on."""
    left, found = list(range(len(objectives))), []
    while left:
        front = [a for a in left if not any(_dominates(objectives[b], objectives[a]) for b in left)]
        found.append(front)
        left = [a for a in left if a not in front]
    return found


def knee(objectives: Sequence[tuple[float, float]]) -> int:
    """The place with the minimum Manhattan distance to the ideal point.

    Both objectives are scaled to 0 … 1 between their best and their worst value.
    """
    distances = manhattan(objectives)
    return min(range(len(distances)), key=lambda place: distances[place])


def manhattan(objectives: Sequence[tuple[float, float]]) -> list[float]:
    """Σ_m (f_m − min f_m)/(max f_m − min f_m) of every entry."""
    total = [0.0] * len(objectives)
    for number in range(2):
        values = [entry[number] for entry in objectives]
        low, high = min(values), max(values)
        for place, value in enumerate(values):
            total[place] += (value - low) / (high - low) if high > low else 0.0
    return total


def ranked(objectives: Sequence[tuple[float, float]]) -> list[tuple[int, float]]:
    """(front, Manhattan distance within it) of every entry: smaller is better."""
    found: dict[int, tuple[int, float]] = {}
    for number, front in enumerate(fronts(objectives)):
        distances = manhattan([objectives[place] for place in front])
        found |= {p: (number, d) for p, d in zip(front, distances, strict=True)}
    return [found[place] for place in range(len(objectives))]


def _dominates(a: tuple[float, float], b: tuple[float, float]) -> bool:
    return a != b and a[0] <= b[0] and a[1] <= b[1]


def _tournament(ranks: list[tuple[int, float]], draw: torch.Generator) -> int:
    a, b = torch.randint(len(ranks), (2,), generator=draw).tolist()
    return int(min(a, b, key=lambda place: ranks[place]))


def _child(a: Sequence[float], b: Sequence[float], draw: torch.Generator) -> list[float]:
    """Each gene from one of the parents; about two of them are mutated."""
    mine = torch.rand(2, len(a), generator=draw)
    child = [x if flag else y for x, y, flag in zip(a, b, (mine[0] < 0.5).tolist(), strict=True)]
    change = (mine[1] < 2 / max(2, len(a))).tolist()
    return [_mutated(x, SPREAD, draw) if c else x for x, c in zip(child, change, strict=True)]


def _mutated(value: float, spread: float, draw: torch.Generator) -> float:
    noise: Tensor = torch.randn((), generator=draw)
    return min(HIGHEST, max(LOWEST, value * math.exp(spread * float(noise))))
