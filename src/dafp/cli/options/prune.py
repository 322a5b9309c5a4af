"""The options of `dafp prune`."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import CRITERIA, RULES, TARGET_UNITS
from .shared import AsJson, Classes, Keep, ModelName, Residual, Shape, Weights, Width


def prune(
    model: ModelName,
    weights: Weights = None,
    ratio: Annotated[
        float | None, typer.Option(help="Share to remove, between 0 and 1.", show_default="0.5")
    ] = None,
    unit: Annotated[
        str | None,
        typer.Option(help="Share of what: filters, params or macs.", show_default="filters"),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="What to remove as UNIT=SHARE, e.g. latency=0.5; units: " + ", ".join(TARGET_UNITS)
        ),
    ] = None,
    runtime: Annotated[str, typer.Option(help="For a target of latency: eager or onnx.")] = "eager",
    batch: Annotated[int, typer.Option(help="For a target of latency: batch size.")] = 1,
    threads: Annotated[int, typer.Option(help="For a target of latency: threads.")] = 1,
    criterion: Annotated[
        str, typer.Option(help=f"One of {', '.join(CRITERIA)}.")
    ] = "dependency_aware",
    rule: Annotated[str, typer.Option(help=f"One of {', '.join(RULES)}.")] = "local_threshold",
    compensate: Annotated[
        bool, typer.Option(help="Add the mean of removed channels to the bias of their consumers.")
    ] = False,
    out: Annotated[Path, typer.Option(help="File for the pruned model.")] = Path(
        "pruned.safetensors"
    ),
    input_shape: Shape = None,
    classes: Classes = None,
    width: Width = 1.0,
    residual: Residual = "keep",
    keep: Keep = None,
    as_json: AsJson = False,
) -> None:
    """Prune a model, verify it against the masked model, and write it to a .safetensors file.

    Example: dafp prune vgg16 --weights vgg16.pth --ratio 0.5 --unit macs --out small.safetensors
    """
