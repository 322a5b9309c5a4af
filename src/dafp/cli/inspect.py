"""The work of `dafp inspect`: trace a model and show what can be pruned."""

import json
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from ..graph.channel_graph import ChannelGraph
from ..network.cost import Cost, cost
from ..tracing import trace
from .model_argument import network
from .printing import printer


def inspect(
    *,
    model: str,
    weights: Path | None,
    input_shape: str | None,
    classes: int | None,
    width: float,
    builder: str | None,
    trust: bool,
    residual: str,
    keep: list[str] | None,
    explain: str | None,
    as_json: bool,
) -> None:
    """Trace the model and print its groups, or the explanation of one."""
    net, example = network(
        model, weights, input_shape, classes, width, builder=builder, trust=trust
    )
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
