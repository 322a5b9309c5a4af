"""The work of `dafp prune`: prune a model, verify it and write it to a file."""

import json
from collections.abc import Callable
from pathlib import Path

import typer
from rich.console import Console
from torch import Tensor, nn

from .. import selection
from ..choices import RULES
from ..criteria.table import score_channels
from ..errors import ModelError, PlanError
from ..files import model_file
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..latency.target import LatencyPlan
from ..network.cost import Cost, cost
from ..one_call import DATA_FREE_CRITERION, DATA_FREE_RULE
from ..pruning.pruned_model import prune as prune_model
from ..recovery.damage import measure_damage
from ..recovery.reconstruction import reconstruct
from ..tracing import trace
from .calibration_images import accuracy_on_test, calibration_images, calibration_set
from .model_argument import network
from .printing import printer, table_of
from .progress import step_progress
from .target_options import (
    LatencySetting,
    Target,
    latency_sentence,
    latency_values,
    plan_for,
    target_from_options,
)


def prune(
    *,
    model: str,
    weights: Path | None,
    ratio: float | None,
    unit: str | None,
    target: str | None,
    runtime: str,
    batch: int,
    threads: int,
    data: str | None,
    root: Path,
    images: int,
    mean: str | None,
    std: str | None,
    fast: bool,
    data_free: bool,
    criterion: str | None,
    rule: str | None,
    compensate: bool,
    out: Path,
    input_shape: str | None,
    classes: int | None,
    width: float,
    residual: str,
    keep: list[str] | None,
    as_json: bool,
) -> None:
    """Prune the model to the target, save it, and print its widths and cost."""
    if rule is not None and rule not in RULES:
        raise ModelError(f"rule {rule!r} is not known; choose one of {', '.join(RULES)}")
    if data is None and fast:
        raise PlanError("--fast concerns calibration images: give --data as well")
    if data is not None and data_free:
        raise PlanError("--data-free uses no images; leave it out, or leave --data out")
    goal = target_from_options(target, ratio, unit)
    known = None if data is None else calibration_set(data, root, mean, std)
    if known is not None and not model.endswith(".safetensors"):
        classes = known.classes if classes is None else classes
    if known is not None and input_shape is None:
        input_shape = ",".join(map(str, (1, *known.shape)))
    net, example = network(model, weights, input_shape, classes, width)
    graph = trace(net, example, residual=residual, keep=keep or ())
    setting = LatencySetting(runtime, batch, threads)
    chosen = None if rule is None else getattr(selection, rule)
    if known is None:
        scores = score_channels(criterion or DATA_FREE_CRITERION, net, graph)
        plan, measured = plan_for(
            net, graph, scores, example, goal, chosen or DATA_FREE_RULE, setting
        )
        small = prune_model(net, graph, plan, compensate)
    else:
        calibration = calibration_images(known, images)
        with step_progress(quiet=as_json) as progress:
            small, plan, measured = _with_images(
                net, graph, example, goal, calibration, criterion, chosen, fast, setting, progress
            )
    after = cost(small, example)
    model_file.save(small, out)
    accuracies = {}
    if known is not None:
        accuracies = {
            "accuracy_before": accuracy_on_test(net, known),
            "accuracy_after": accuracy_on_test(small, known),
        }
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "file": str(out),
                    "verified": True,
                    "plan": json.loads(plan.to_json()),
                    "before": vars(plan.before),
                    "after": vars(after),
                    "filters": graph.filters,
                    "filters_removed": _removed(graph, plan),
                    **({} if measured is None else {"latency": latency_values(measured)}),
                    **accuracies,
                }
            )
        )
        return
    console = printer()
    _print_widths(console, graph, plan)
    _print_before_after(console, model, graph, plan, after, accuracies)
    if measured is not None:
        console.print(latency_sentence(measured, setting), highlight=False)
    console.print(f"verified against the masked model; written to {out}", highlight=False)


def _with_images(
    net: nn.Module,
    graph: ChannelGraph,
    example: Tensor,
    goal: Target,
    images: list[tuple[Tensor, Tensor]],
    criterion: str | None,
    rule: selection.Rule | None,
    fast: bool,
    setting: LatencySetting,
    progress: Callable[[str, int, int], None],
) -> tuple[nn.Module, PruningPlan, LatencyPlan | None]:
    """Choose channels and widths on images, and rebuild the weights."""
    progress("scores", 0, 1)
    scores = score_channels(criterion or "reconstruction_error", net, graph, images)
    measured = None
    if fast or rule is not None or goal.unit == "latency":
        plan, measured = plan_for(
            net, graph, scores, example, goal, rule or selection.uniform, setting
        )
    else:
        table = measure_damage(
            net, graph, scores, images, logits=True,
            done=lambda number, total: progress("widths", number, total),
        )  # fmt: skip
        plan = selection.least_damage(table, graph, goal.share, goal.unit)
    progress("rebuilding", 0, 1)
    rebuilt = reconstruct(net, graph, plan, images)
    progress("verifying", 0, 1)
    return prune_model(rebuilt, graph, plan), plan, measured


def _removed(graph: ChannelGraph, plan: PruningPlan) -> int:
    """Channels removed from filter groups; channels tied to each other count once."""
    return sum(g.size - len(plan.keep[g.name]) for g in graph.groups if g.kind == "filter")


def _removed_filters(graph: ChannelGraph, plan: PruningPlan) -> int:
    """Filters removed by the plan; filters that are tied to each other count separately."""
    return sum(
        (g.size - len(plan.keep[g.name])) * sum(len(s.index) for s in g.producers) // g.size
        for g in graph.groups
    )


def _print_widths(console: Console, graph: ChannelGraph, plan: PruningPlan) -> None:
    table = table_of("widths", ["group", "kind"], ["before", "after", "removed"])
    for group in graph.groups:
        left = len(plan.keep[group.name])
        table.add_row(
            group.name, group.kind, str(group.size), str(left), f"{1 - left / group.size:.0%}"
        )
    console.print(table)


def _print_before_after(
    console: Console,
    name: str,
    graph: ChannelGraph,
    plan: PruningPlan,
    after: Cost,
    accuracies: dict[str, float],
) -> None:
    assert plan.before is not None
    gone = _removed(graph, plan)
    table = table_of(name, [""], ["before", "after", "removed"])
    rows = (
        ("prunable filters", graph.filters, graph.filters - gone),
        ("all filters", graph.all_filters, graph.all_filters - _removed_filters(graph, plan)),
        ("parameters", plan.before.params, after.params),
        ("multiply-adds", plan.before.macs, after.macs),
    )
    for label, old, new in rows:
        table.add_row(label, f"{old:,}", f"{new:,}", f"{1 - new / max(1, old):.1%}")
    if accuracies:
        whole, left = accuracies["accuracy_before"], accuracies["accuracy_after"]
        table.add_row("test accuracy", f"{whole:.2%}", f"{left:.2%}", "")
    console.print(table)
