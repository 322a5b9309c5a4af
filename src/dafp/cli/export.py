"""The command `dafp export`: a model as a file for another runtime."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..export import to_onnx
from .options import AsJson, Classes, ModelName, Shape, Weights, Width, network


def export(
    model: ModelName,
    weights: Weights = None,
    out: Annotated[Path, typer.Option(help="Where the ONNX file goes.")] = Path("model.onnx"),
    fold_bn: Annotated[
        bool, typer.Option("--fold-bn", help="Multiply BN into the layer in front of it.")
    ] = False,
    selections: Annotated[
        str, typer.Option(help="Feature selections: 'fold' into zero weights, or plain 'gather'.")
    ] = "fold",
    input_shape: Shape = None,
    classes: Classes = None,
    width: Width = 1.0,
    as_json: AsJson = False,
) -> None:
    """Write a model to ONNX with a free batch size, checked against PyTorch before it is kept.

    MODEL may also be a pruned .safetensors file of one of our own models.

    Example: dafp export small.safetensors --out small.onnx --fold-bn
    """
    net, example = network(model, weights, input_shape, classes, width)
    done = to_onnx(net, example, out, fold_bn=fold_bn, selections=selections)
    if as_json:
        typer.echo(json.dumps({
            "file": str(out), "bytes": done.size, "gaps": done.gaps, "nodes": done.nodes,
            "folded_norms": done.folded_norms, "folded_selections": done.folded_selections,
            "notes": list(done.notes), **vars(done.cost),
        }))  # fmt: skip
        return
    console = Console(soft_wrap=True)
    for note in done.notes:
        console.print(f"note: {note}", highlight=False)
    worst = max(done.gaps.values())
    console.print(
        f"{done.folded_norms} BN and {done.folded_selections} feature selections folded; "
        f"{done.nodes.get('BatchNormalization', 0)} BN and {done.nodes.get('Gather', 0)} gathers "
        "left",
        highlight=False,
    )
    console.print(
        f"differs from PyTorch by at most {worst:.1e} of the largest output, on "
        f"{', '.join(done.gaps)}; written to {out} ({done.size:,} bytes)",
        highlight=False,
    )
