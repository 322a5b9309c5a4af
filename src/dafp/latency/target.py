"""Prune to a latency target on this machine."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from ..criteria.scores import Scores
from ..errors import BenchError, PlanError, TargetError
from ..export import to_onnx
from ..export.onnx_rewrites import LEAST_SHARE
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..pruning.pruned_model import prune
from ..selection.damage_table import DamageTable
from ..selection.least_damage import least_damage
from ..selection.rules import Rule, local_threshold
from ..selection.targets import Measure, to_target
from .layer_calls import LayerCall, layers_of
from .layer_table import Table
from .runtimes import Model, runner, threads_of_torch
from .timing import Ratio, Run, Timing, by_turns, check_setting, median_ratio, ratio

TOLERANCE = 0.05  # relative to the requested time
ENOUGH = 0.025  # stop searching within this distance of the target
ATTEMPTS = 8
TIMES = 6  # maximum number of measurements of one attempt

RUNTIMES = ("eager", "onnx")


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


def to_latency(
    model: nn.Module,
    graph: ChannelGraph,
    scores: Scores,
    example: Any,
    target: float = 0.5,
    *,
    runtime: str = "eager",
    batch: int = 1,
    threads: int = 1,
    rule: Rule = local_threshold,
    damage: DamageTable | None = None,
    seconds: float = 1.0,
) -> LatencyPlan:
    """Find a plan that removes the share `target` of the latency on this machine, within 5 %.

    Latencies of single layers predict how many channels to remove. The pruned model is measured,
    alternating with the original, and the prediction corrected until the remaining time is within
    5 % of the requested one. Results near the target are measured again, on a noisy machine up to
    six times. Latencies of layers are cached in the user's cache directory.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`
        scores: from a criterion
        example: an input of the network
        target: share of the latency to remove, in (0, 1)
        runtime: "eager" or "onnx"
        batch: batch size
        threads: number of threads
        rule: how channels are chosen from scores
        damage: choose widths by this table of measured damage instead of by the rule
        seconds: how long one measurement takes for each of the two models

    Returns:
        The plan, with the measurements that confirm it.

    Raises:
        TargetError: the target cannot be reached.

    Examples:
        >>> model = dafp.models.build("vgg11", width=0.25)
        >>> x = torch.randn(1, 3, 32, 32)
        >>> graph = dafp.trace(model, x)
        >>> scores = dafp.criteria.l2_norm(model, graph)
        >>> found = dafp.latency.to_latency(model, graph, scores, x, 0.5)  # doctest: +SKIP
        >>> small = dafp.prune(model, graph, found.plan)  # doctest: +SKIP
    """
    if not 0 < target < 1:
        raise PlanError(f"target={target} of latency is outside (0, 1); it is a share, e.g. 0.5")
    if runtime not in RUNTIMES:
        raise BenchError(f"runtime={runtime!r} has no latency target; choose 'eager' or 'onnx'")
    check_setting([batch], [threads], seconds)
    table = Table(runtime, batch, threads)
    layers = layers_of(model, example)
    step = table.round_to(layers)
    with TemporaryDirectory() as folder:
        base = _ready(model, example, runtime, Path(folder) / "base.onnx")

        def time(plan: PruningPlan) -> tuple[Timing, Timing]:
            small = prune(model, graph, plan)
            pruned = _ready(small, example, runtime, Path(folder) / "pruned.onnx")

            def once() -> tuple[Timing, Timing]:
                with threads_of_torch(threads):
                    both = {
                        name: runner(m, runtime, example, batch=batch, threads=threads)
                        for name, m in (("base", base), ("pruned", pruned))
                    }
                    timings = by_turns(both, seconds)
                return timings["base"], timings["pruned"]

            return until_clear(once, 1 - target)

        with threads_of_torch(threads):
            whole = _whole(runner(base, runtime, example, batch=batch, threads=threads), seconds)
        share = predicted_share(graph, layers, table, whole)

        def choose(aim: float, round_to: int) -> PruningPlan:
            hardest = graph.resolve(rule(scores, 1 - 1e-9, round_to=round_to))
            if aim >= share(hardest):
                return hardest  # the prediction may be wrong: let the measurement decide
            unit = Measure("latency", share)
            if damage is not None:
                return least_damage(damage, graph, aim, unit, round_to=round_to)
            return to_target(scores, graph, aim, unit, rule, round_to=round_to)

        attempts = search(choose, time, target, step)
    table.save()
    best = min(attempts, key=lambda attempt: _miss(attempt, target))
    if _miss(best, target) > TOLERANCE:
        raise TargetError(_why_missed(best, attempts, target))
    return LatencyPlan(
        best.plan, 1 - best.left, best, tuple(attempts), best.round_to, table.measured
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
) -> list[Attempt]:
    """Measure plans and correct the aim; halve `round_to` where coarse widths cannot meet it.

    The next aim is interpolated between the nearest measurements above and below the target.
    """
    attempts: list[Attempt] = []
    seen: list[PruningPlan] = []
    aim = target
    for _ in range(2 * ATTEMPTS):
        plan = choose(aim, round_to)
        if any(plan.keep == old.keep for old in seen):
            if round_to == 1:
                break
            round_to //= 2  # these steps are too coarse
            continue
        seen.append(plan)
        attempts.append(Attempt(plan, aim, *time(plan), round_to))
        if _miss(attempts[-1], target) <= ENOUGH or len(attempts) == ATTEMPTS:
            break
        alike = [(a.aim, a.left) for a in attempts if a.round_to == round_to]
        aim = _next_aim([(0.0, 1.0), *alike], 1 - target)
    return attempts


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


def predicted_share(
    graph: ChannelGraph, layers: list[LayerCall], table: Table, whole: float
) -> Callable[[PruningPlan], float]:
    """A function plan -> predicted share of the time that it removes.

    Time that is not spent in the layers of the table (norms, activations, calls) is taken to be
    proportional to the number of activations.
    """
    selecting = {f"{s.consumer}.weight" for s in graph.label_index.selections}

    def now(layer: LayerCall, sizes: dict[str, list[int]]) -> LayerCall:
        if layer.weight not in sizes:
            return layer
        outputs, inputs = sizes[layer.weight][:2]
        if not layer.groups:
            return replace(layer, inputs=outputs, outputs=outputs)
        inputs *= layer.groups
        folds = table.runtime == "onnx" and layer.weight in selecting
        if folds and inputs >= LEAST_SHARE * layer.inputs:
            inputs = layer.inputs  # the export replaces the selection by zero weights
        return replace(layer, inputs=inputs, outputs=outputs)

    def left(sizes: dict[str, list[int]]) -> tuple[float, int]:
        narrow = [now(layer, sizes) for layer in layers]
        pairs = zip(layers, narrow, strict=True)
        time = sum(table.seconds(old, new.inputs, new.outputs) for old, new in pairs)
        return time, sum(layer.activations for layer in narrow)

    full, activations = left({})
    rest = max(0.0, whole - full)
    total = full + rest

    def removed(plan: PruningPlan) -> float:
        alive = graph.label_index.kept(graph.flags(plan))
        time, made = left(graph.sizes(alive))
        return 1 - (time + rest * made / max(1, activations)) / total

    return removed


def _ready(model: nn.Module, example: Any, runtime: str, path: Path) -> Model:
    if runtime != "onnx":
        return model
    return to_onnx(model, example, path, fold_bn=True).path


def _whole(run: Run, seconds: float) -> float:
    """Seconds of the fastest run, as in the table."""
    return min(by_turns({"": run}, seconds)[""].samples)


def _miss(attempt: Attempt, target: float) -> float:
    """Relative difference between the remaining time and the requested one."""
    return abs(attempt.left / (1 - target) - 1)


def _why_missed(best: Attempt, attempts: list[Attempt], target: float) -> str:
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
