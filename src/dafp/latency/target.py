"""Prune to a latency target on this machine."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from ..criteria.scores import Scores
from ..errors import PlanError
from ..export.onnx_rewrites import LEAST_SHARE
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..pruning.pruned_model import prune
from ..selection.damage_table import DamageTable
from ..selection.least_damage import least_damage
from ..selection.rules import RoundTo, Rule, local_threshold, step_of
from ..selection.targets import Measure, to_target
from .layer_calls import LayerCall, layers_of
from .layer_table import Table
from .pair_timing import LatencySetting, pair_timer, whole_latency
from .runtimes import threads_of_torch
from .search import LatencyPlan, met, search


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
    min_channels: int = 1,
    round_to: RoundTo = "auto",
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
        min_channels: minimum number of channels that every group keeps
        round_to: the number of kept channels is rounded up to a multiple of this; "auto": of 16, 8,
            4 or 2, the most that costs no time in the slowest layers, and less if the target needs
            it

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
    setting = LatencySetting(runtime, batch, threads, seconds)
    table = Table(runtime, batch, threads)
    layers = layers_of(model, example)
    step = table.round_to(layers) if round_to == "auto" else step_of(round_to)
    whole = min(whole_latency(model, example, setting).samples)  # the fastest, as in the table
    with threads_of_torch(threads):
        share = predicted_share(graph, layers, table, whole)

        def choose(aim: float, step: int) -> PruningPlan:
            floors: dict[str, Any] = {"min_channels": min_channels, "round_to": step}
            hardest = graph.resolve(rule(scores, 1 - 1e-9, **floors))
            if aim >= share(hardest):
                return hardest  # the prediction may be wrong: let the measurement decide
            unit = Measure("latency", share)
            if damage is not None:
                return least_damage(damage, graph, aim, unit, **floors)
            return to_target(scores, graph, aim, unit, rule, **floors)

        with pair_timer(model, example, target, setting) as time:
            attempts = search(
                choose,
                lambda plan: time(prune(model, graph, plan)),
                target,
                step,
                halve=round_to == "auto",
            )
    table.save()
    return met(attempts, target, table.measured)


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
