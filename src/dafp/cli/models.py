"""The work of `dafp inspect` and `dafp prune`: trace, show and prune a model."""

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

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


def inspect(
    *,
    model: str,
    weights: Path | None,
    input_shape: str | None,
    classes: int | None,
    width: float,
    residual: str,
    keep: list[str] | None,
    explain: str | None,
    as_json: bool,
) -> None:
    """Trace the model and print its groups, or the explanation of one."""
    net, example = network(model, weights, input_shape, classes, width)
    graph = trace(net, example, residual=residual, keep=keep or ())
    if explain is not None:
        typer.echo(graph.explain(explain))
        return
    whole = cost(net, example)
    if as_json:
        typer.echo(json.dumps(_describe(graph, whole)))
        return
    out = printer()
    table = Table(title=f"{model}: {len(graph.groups)} groups", title_justify="left")
    for column in ("group", "kind", "channels", "producers", "scales", "consumers"):
        number = column == "channels"
        table.add_column(
            column, justify="right" if number else "left", no_wrap=number, overflow="fold"
        )
    for group in graph.groups:
        slots = (group.producers, group.scales, group.consumers)
        table.add_row(group.name, group.kind, str(group.size), *(_modules(s) for s in slots))
    out.print(table)
    if graph.kept:
        kept = Table(title="kept", title_justify="left")
        for column in ("layer", "filters", "at", "reason"):
            number = column == "filters"
            kept.add_column(
                column, justify="right" if number else "left", no_wrap=number, overflow="fold"
            )
        for line in graph.kept:
            kept.add_row(
                line.name, str(line.size), f"{line.op} in {line.module or 'the model'}", line.reason
            )
        out.print(kept)
    for note in graph.notes:
        out.print(f"note: {note}")
    out.print(
        f"{graph.prunable_filters} of {graph.all_filters} filters can be pruned; {whole}",
        highlight=False,
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


def _describe(graph: ChannelGraph, whole: Cost) -> dict[str, Any]:
    return {
        "params": whole.params,
        "macs": whole.macs,
        "filters": graph.filters,
        "all_filters": graph.all_filters,
        "groups": [
            {
                "name": g.name,
                "kind": g.kind,
                "size": g.size,
                "producers": [s.param for s in g.producers],
                "scales": [s.param for s in g.scales],
                "consumers": [s.param for s in g.consumers],
            }
            for g in graph.groups
        ],
        "kept": [k._asdict() for k in graph.kept],
        "notes": list(graph.notes),
    }


def _modules(slots: Any) -> str:
    names = list(dict.fromkeys(slot.param.rpartition(".")[0] for slot in slots))
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _removed(graph: ChannelGraph, plan: PruningPlan) -> int:
    """Channels removed from filter groups; channels tied to each other count once."""
    return sum(g.size - len(plan.keep[g.name]) for g in graph.groups if g.kind == "filter")


def _removed_filters(graph: ChannelGraph, plan: PruningPlan) -> int:
    """Filters removed with these channels."""
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
