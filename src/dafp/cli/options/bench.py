"""The options of `dafp bench`."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import RUNTIMES
from .shared import AsJson, Builder, Classes, Shape, Trust, Width


def bench(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="Names, .safetensors or .onnx files, or directories of runs; all are compared "
            "with the first.",
        ),
    ],
    runtime: Annotated[
        list[str] | None,
        typer.Option(
            help=f"One of {', '.join(RUNTIMES)}: PyTorch as it is, torch.compile, ONNX Runtime; "
            "may be repeated.",
            show_default="eager; onnx if all are .onnx files",
        ),
    ] = None,
    batch: Annotated[
        list[int] | None, typer.Option(help="Batch size; may be repeated.", show_default="1")
    ] = None,
    threads: Annotated[
        list[int] | None, typer.Option(help="Threads; may be repeated.", show_default="1")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Time for each model and setting.")] = 2.0,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.svg", help="Draw a chart into this file.")
    ] = None,
    input_shape: Shape = None,
    classes: Classes = None,
    width: Width = 1.0,
    builder: Builder = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Measure latency, throughput and memory of models in turn, and compare with the first.

    The speed-up has a 95 % interval; "ideal" is what the multiply-adds promise. Run it on an idle
    machine: if others use it, the table says that it was too busy to measure.

    Examples:

    dafp bench runs/mine/baseline.safetensors runs/mine --trust --runtime onnx

    dafp bench vgg16 small.safetensors --runtime eager --runtime onnx --batch 1 --batch 64
    """
