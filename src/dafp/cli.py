"""The command line: `dafp inspect`, `dafp prune`, `dafp run`."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from . import __version__, artifact, selection
from .cost import cost
from .errors import DafpError, FileError, ModelError
from .graph import ChannelGraph
from .models import build, default_example
from .plan import Cost, PruningPlan
from .slimming import DATA_FREE, criterion_named
from .surgery import prune as prune_model
from .tracing import trace

app = typer.Typer(
    help="Make convolutional networks smaller: any CNN in, a smaller and verified CNN out.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip
RULES = ("local_threshold", "global_ranking", "uniform")

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="One of ours (vgg16, preresnet56, resnet20, …), timm:NAME, torchvision:NAME, or "
        "package.module:function for a function of yours that returns a model.",
    ),
]
Weights = Annotated[
    Path | None, typer.Option(help="State dict to load first: .safetensors, .pt or .pth.")
]
Shape = Annotated[
    str | None, typer.Option("--input", help="Shape of the example, e.g. 1,3,224,224.")
]
Classes = Annotated[int | None, typer.Option(help="Number of classes of the model.")]
Width = Annotated[float, typer.Option(help="Width multiplier, for our own models.")]
Residual = Annotated[
    str, typer.Option(help="Residual streams: 'keep' them whole, or 'couple': prune them jointly.")
]
Keep = Annotated[
    list[str] | None, typer.Option(help="Layer (or pattern) to leave alone; may be repeated.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where errors arise.")
    ] = False,
) -> None:
    """Every command prints results to stdout, progress to stderr; errors end with exit code 2."""
    if version:
        typer.echo(f"dafp {__version__}")
        raise typer.Exit


@app.command()
def inspect(
    model: ModelName,
    weights: Weights = None,
    input_shape: Shape = None,
    classes: Classes = None,
    width: Width = 1.0,
    residual: Residual = "keep",
    keep: Keep = None,
    explain: Annotated[str | None, typer.Option(help="Say with whom this group is tied.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what can be pruned: groups, who makes and reads them, cost, what is kept and why.

    Example: dafp inspect torchvision:resnet50 --explain layer1.0.conv1
    """
    network, example = _network(model, weights, input_shape, classes, width)
    graph = trace(network, example, residual=residual, keep=keep or ())
    if explain is not None:
        typer.echo(graph.explain(explain))
        return
    whole = cost(network, example)
    if as_json:
        typer.echo(json.dumps(_describe(graph, whole)))
        return
    out = Console()
    table = Table(title=f"{model}: {len(graph.groups)} groups", title_justify="left")
    for column in ("group", "kind", "channels", "made by", "scaled by", "read by"):
        table.add_column(
            column, justify="right" if column == "channels" else "left", overflow="fold"
        )
    for group in graph.groups:
        slots = (group.producers, group.scales, group.consumers)
        table.add_row(group.name, group.kind, str(group.size), *(_modules(s) for s in slots))
    out.print(table)
    if graph.kept:
        kept = Table(title="kept", title_justify="left")
        for column in ("layer", "filters", "at", "reason"):
            kept.add_column(
                column, justify="right" if column == "filters" else "left", overflow="fold"
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


@app.command()
def prune(
    model: ModelName,
    weights: Weights = None,
    ratio: Annotated[float, typer.Option(help="Share to remove, between 0 and 1.")] = 0.5,
    unit: Annotated[str, typer.Option(help="Share of what: filters, params or macs.")] = "filters",
    criterion: Annotated[
        str, typer.Option(help=f"One of {', '.join(DATA_FREE)}.")
    ] = "dependency_aware",
    rule: Annotated[str, typer.Option(help=f"One of {', '.join(RULES)}.")] = "local_threshold",
    compensate: Annotated[
        bool, typer.Option(help="Give the mean of removed channels to their readers.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Where the pruned model goes.")] = Path(
        "pruned.safetensors"
    ),
    input_shape: Shape = None,
    classes: Classes = None,
    width: Width = 1.0,
    residual: Residual = "keep",
    keep: Keep = None,
    as_json: AsJson = False,
) -> None:
    """Prune a model, verify it against the masked model, and write it to one safe file.

    Example: dafp prune vgg16 --weights vgg16.pth --ratio 0.5 --unit macs --out small.safetensors
    """
    if rule not in RULES:
        raise ModelError(f"rule {rule!r} is not known; choose one of {', '.join(RULES)}")
    network, example = _network(model, weights, input_shape, classes, width)
    graph = trace(network, example, residual=residual, keep=keep or ())
    scores = criterion_named(criterion)(network, graph)
    plan = selection.to_target(scores, graph, ratio, unit, getattr(selection, rule))
    small = prune_model(network, graph, plan, compensate)
    artifact.save(small, out)
    after = cost(small, example)
    if as_json:
        typer.echo(json.dumps({
            "file": str(out), "verified": True, "plan": json.loads(plan.to_json()),
            "before": vars(plan.before), "after": vars(after),
            "filters": graph.filters, "filters_removed": _removed(graph, plan),
        }))  # fmt: skip
        return
    console = Console()
    _print_widths(console, graph, plan)
    _print_before_after(console, model, graph, plan, after)
    console.print(f"verified against the masked model; written to {out}", highlight=False)


@app.command()
def run(
    model: Annotated[str, typer.Option(help="Network to prune.")] = "preresnet20",
    ratio: Annotated[float, typer.Option(help="Share of filters to remove.")] = 0.5,
    out: Annotated[Path, typer.Option(help="Directory of the run.")] = Path("runs/default"),
) -> None:
    """Prune and verify a built-in network and print what became of it."""
    torch.manual_seed(0)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot use {out} as a directory: {error.strerror}") from error
    prune(model, ratio=ratio, out=out / "pruned.safetensors")


def main() -> None:
    """Run the command line; an error of ours is one line and exit code 2."""
    try:
        app(standalone_mode=True)
    except DafpError as error:
        if "--traceback" in sys.argv:
            raise
        text = " ".join(str(error).split())
        Console(stderr=True, soft_wrap=True).print(
            f"error: {text}", style="red", highlight=False, markup=False
        )
        sys.exit(2)


def _network(
    name: str, weights: Path | None, shape: str | None, classes: int | None, width: float
) -> tuple[nn.Module, Tensor]:
    network = build(name, classes=classes, width=width).eval()
    if weights is not None:
        artifact.load_weights(network, weights)
    if shape is None:
        return network, default_example(name, network)
    try:
        sizes = [int(size) for size in shape.split(",")]
        example = torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"--input {shape!r} is no shape; write it as 1,3,224,224") from error
    return network, example


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
    """Channels of filter groups that go; those tied to each other count once."""
    return sum(g.size - len(plan.keep[g.name]) for g in graph.groups if g.kind == "filter")


def _removed_filters(graph: ChannelGraph, plan: PruningPlan) -> int:
    """Filters that go with them."""
    return sum(
        (g.size - len(plan.keep[g.name])) * sum(len(s.index) for s in g.producers) // g.size
        for g in graph.groups
    )


def _print_widths(console: Console, graph: ChannelGraph, plan: PruningPlan) -> None:
    table = Table("group", "kind", title="widths", title_justify="left")
    for column in ("before", "after", "removed"):
        table.add_column(column, justify="right")
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
    table = Table("", title=name, title_justify="left")
    for column in ("before", "after", "removed"):
        table.add_column(column, justify="right")
    rows = (
        ("prunable filters", graph.filters, graph.filters - gone),
        ("all filters", graph.all_filters, graph.all_filters - _removed_filters(graph, plan)),
        ("parameters", plan.before.params, after.params),
        ("multiply-adds", plan.before.macs, after.macs),
    )
    for label, old, new in rows:
        table.add_row(label, f"{old:,}", f"{new:,}", f"{1 - new / max(1, old):.1%}")
    console.print(table)
