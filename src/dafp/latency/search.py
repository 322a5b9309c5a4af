"""Search a plan by measuring: correct the aim until the remaining time is the requested one."""

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import TargetError
from ..graph.plan import PruningPlan
from .timing import Ratio, Timing, median_ratio, ratio

TOLERANCE = 0.05  # relative to the requested time
ENOUGH = 0.025  # stop searching within this distance of the target
ATTEMPTS = 8
TIMES = 6  # maximum number of measurements of one attempt


@dataclass(frozen=True)
class Attempt:
    """A plan with its predicted and its measured latency."""

    plan: PruningPlan
    aim: float  # predicted share of the time to remove
    before: Timing
    after: Timing
    round_to: int

    @property
    def left(self) -> float:
        """Remaining share of the time, as measured."""
        return 1 / median_ratio(self.before, self.after)

    @property
    def speedup(self) -> Ratio:
        return ratio(self.before, self.after)


@dataclass(frozen=True, repr=False)
class LatencyPlan:
    """A plan that removes a share of the latency, with its measurements."""

    plan: PruningPlan
    removed: float  # share of the time, measured
    chosen: Attempt
    attempts: tuple[Attempt, ...]
    round_to: int  # widths are multiples of it
    measured: int  # points of the layer table that were not in the cache

    def __repr__(self) -> str:
        found = self.chosen.speedup
        return (
            f"LatencyPlan(removed={self.removed:.3f} of the time, speed-up {found.value:.2f}× "
            f"({found.low:.2f} to {found.high:.2f}), {len(self.attempts)} attempts, "
            f"round_to={self.round_to})"
        )


def until_clear(once: Callable[[], tuple[Timing, Timing]], wanted: float) -> tuple[Timing, Timing]:
    """Measure until it is clear whether the remaining share of the time is the wanted one.

    One measurement is enough if the result is far off. Otherwise it is repeated with new sessions,
    because two sessions of one model differ by some percent, until the confidence interval is
    within 5 %.
    """
    before, after = once()
    for times in range(1, TIMES):
        found = ratio(before, after)
        low, high = (1 / (end * wanted) - 1 for end in (found.high, found.low))
        far = low > ENOUGH or high < -ENOUGH
        near = times > 1 and low > -TOLERANCE and high < TOLERANCE
        if far or near:
            break
        more = once()
        before, after = before + more[0], after + more[1]
    return before, after


def search(
    choose: Callable[[float, int], PruningPlan],
    time: Callable[[PruningPlan], tuple[Timing, Timing]],
    target: float,
    round_to: int,
    *,
    halve: bool = True,
    first: float | None = None,
    enough: float = ENOUGH,
    predicted: Callable[[PruningPlan], float] | None = None,
) -> list[Attempt]:
    """Measure plans and correct the aim; halve `round_to` where coarse widths cannot meet it.

    The next aim is interpolated between the nearest measurements above and below the target.

    Args:
        choose: function of an aim and a step of widths that returns a plan
        time: measures a plan
        target: share of the time to remove
        round_to: the step of widths
        halve: whether the step may be halved
        first: the first aim; by default, the target
        enough: relative distance from the requested time at which the search stops
        predicted: function of a plan that returns the aim which it meets exactly; by default, a
            plan counts as meeting the aim that it was made for
    """
    attempts: list[Attempt] = []
    seen: list[PruningPlan] = []
    aim = target if first is None else first
    for _ in range(2 * ATTEMPTS):
        plan = choose(aim, round_to)
        if any(plan.keep == old.keep for old in seen):
            if round_to == 1 or not halve:
                break
            round_to //= 2  # these steps are too coarse
            continue
        seen.append(plan)
        met_aim = aim if predicted is None else predicted(plan)
        attempts.append(Attempt(plan, met_aim, *time(plan), round_to))
        if miss(attempts[-1], target) <= enough or len(attempts) == ATTEMPTS:
            break
        alike = [(a.aim, a.left) for a in attempts if predicted or a.round_to == round_to]
        aim = _next_aim([(0.0, 1.0), *alike], 1 - target)
    return attempts


def met(attempts: list[Attempt], target: float, measured: int = 0) -> LatencyPlan:
    """The attempt nearest to the target; TargetError if it is not within 5 %."""
    best = nearest(attempts, target)
    if miss(best, target) > TOLERANCE:
        raise TargetError(why_missed(best, attempts, target))
    return LatencyPlan(best.plan, 1 - best.left, best, tuple(attempts), best.round_to, measured)


def nearest(attempts: list[Attempt], target: float) -> Attempt:
    """The attempt whose remaining time is nearest to the requested one."""
    return min(attempts, key=lambda attempt: miss(attempt, target))


def _next_aim(points: list[tuple[float, float]], wanted: float) -> float:
    """Interpolate between two measurements (aim, remaining share) to the wanted share."""
    slow = [p for p in points if p[1] > wanted]
    quick = [p for p in points if p[1] <= wanted]
    if quick and slow:
        first, second = max(slow), min(quick)
    else:
        first, second = sorted(points)[-2:] if slow else sorted(points)[:2]
    drop = first[1] - second[1]
    if drop <= 0 or second[0] <= first[0]:  # noise, or pruning does not help
        return (first[0] + (second[0] if quick else 1)) / 2
    aim = first[0] + (second[0] - first[0]) * (first[1] - wanted) / drop
    return min(max(aim, 0.01), (max(p[0] for p in points) + 1) / 2)


def miss(attempt: Attempt, target: float) -> float:
    """Relative difference between the remaining time and the requested one."""
    return abs(attempt.left / (1 - target) - 1)


def why_missed(best: Attempt, attempts: list[Attempt], target: float) -> str:
    text = (
        f"target={target} of latency was not met within {TOLERANCE:.0%}: after {len(attempts)} "
        f"attempts the nearest left {best.left:.3f} of the time instead of {1 - target:.3f}"
    )
    doubt = best.after.doubt or best.before.doubt
    if doubt:
        return text + f". The machine was too busy to tell ({doubt}); try again when it is idle"
    return text + (
        ". Ask for less, or, where residual streams are kept, trace with residual='couple' "
        "(--residual couple)"
    )
