"""The options of `dafp export`."""

from pathlib import Path
from typing import Annotated

import typer

from .shared import AsJson, Classes, ModelName, Shape, Weights, Width


def export(
    model: ModelName,
    weights: Weights = None,
    out: Annotated[Path, typer.Option(help="ONNX file to write.")] = Path("model.onnx"),
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
