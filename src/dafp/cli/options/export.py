"""The options of `dafp export`."""

from pathlib import Path
from typing import Annotated

import typer

from .shared import (
    AsJson,
    Builder,
    Classes,
    ModelName,
    Shape,
    Trust,
    Weights,
    Width,
)


def export(
    model: ModelName,
    weights: Weights = None,
    out: Annotated[Path, typer.Option(help="ONNX file to write.")] = Path("model.onnx"),
    fold_bn: Annotated[
        bool, typer.Option("--fold-bn", help="Fold BN into the preceding layer.")
    ] = False,
    selections: Annotated[
        str,
        typer.Option(
            help="Feature selections as zero weights ('fold') or as ONNX Gather ('gather')."
        ),
    ] = "fold",
    input_shape: Shape = None,
    classes: Classes = None,
    width: Width = 1.0,
    builder: Builder = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Write a model to ONNX with a free batch size, checked against PyTorch before it is kept.

    MODEL may also be the .safetensors file of a pruned built-in model.

    Example: dafp export small.safetensors --out small.onnx --fold-bn
    """
