"""The work of `dafp export`: write a model as an ONNX file."""

import json
from pathlib import Path

import typer
from rich.console import Console

from ..export import to_onnx
from .model_argument import network


def export(
    *,
    model: str,
    weights: Path | None,
    out: Path,
    fold_bn: bool,
    selections: str,
    input_shape: str | None,
    classes: int | None,
    width: float,
    builder: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Write the ONNX file and print what was folded and how far its outputs differ."""
    net, example = network(
        model, weights, input_shape, classes, width, builder=builder, trust=trust
    )
    done = to_onnx(net, example, out, fold_bn=fold_bn, selections=selections)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "file": str(out),
                    "bytes": done.size,
                    "gaps": done.gaps,
                    "nodes": done.nodes,
                    "folded_norms": done.folded_norms,
                    "folded_selections": done.folded_selections,
                    "notes": list(done.notes),
                    **vars(done.cost),
                }
            )
        )
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
