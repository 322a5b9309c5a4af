"""The work of `dafp prune`: prune a model, verify it and write it to a file."""

import json
from pathlib import Path

import typer
from rich.console import Console

from .. import selection
from ..choices import RULES
from ..criteria.table import criterion_named
from ..errors import ModelError
from ..files import model_file
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..network.cost import Cost, cost
from ..pruning.pruned_model import prune as prune_model
from ..tracing import trace
from .model_argument import network
from .printing import printer, table_of
from .target_options import (
    LatencySetting,
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
    criterion: str,
    rule: str,
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
    if rule not in RULES:
        raise ModelError(f"rule {rule!r} is not known; choose one of {', '.join(RULES)}")
    goal = target_from_options(target, ratio, unit)
    net, example = network(model, weights, input_shape, classes, width)
    graph = trace(net, example, residual=residual, keep=keep or ())
    scores = criterion_named(criterion)(net, graph)
    setting = LatencySetting(runtime, batch, threads)
    plan, measured = plan_for(net, graph, scores, example, goal, getattr(selection, rule), setting)
    small = prune_model(net, graph, plan, compensate)
    after = cost(small, example)
    model_file.save(small, out)
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
                }
            )
        )
        return
    console = printer()
    _print_widths(console, graph, plan)
    _print_before_after(console, model, graph, plan, after)
    if measured is not None:
        console.print(latency_sentence(measured, setting), highlight=False)
    console.print(f"verified against the masked model; written to {out}", highlight=False)


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
    console: Console, name: str, graph: ChannelGraph, plan: PruningPlan, after: Cost
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
    console.print(table)
