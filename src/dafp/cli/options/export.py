"""The options of `dafp export`."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import CALIBRATIONS, NAMED_SETS
from .shared import (
    AsJson,
    Builder,
    Classes,
    ModelName,
    Shape,
    SkipUnreadable,
    Trust,
    Weights,
    Width,
)


def export(
    model: ModelName,
    weights: Weights = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="ONNX file to write.", show_default="model.onnx, with --int8 model.int8.onnx"
        ),
    ] = None,
    fold_bn: Annotated[
        bool, typer.Option("--fold-bn", help="Fold BN into the preceding layer: faster.")
    ] = False,
    selections: Annotated[
        str,
        typer.Option(
            help="How a layer that reads some channels only is written: with zero weights for the "
            "others where that is faster ('fold'), or with a Gather ('gather')."
        ),
    ] = "fold",
    int8: Annotated[
        bool,
        typer.Option(
            "--int8",
            help="Quantise weights and activations to 8 bits, calibrated on training images of "
            "--data, and compare with the float file on its test images.",
        ),
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|folder:DIR",
            help="With --int8: images to calibrate on and to compare with: "
            f"{', '.join(NAMED_SETS)}, or folder:DIR.",
            show_default="those that a run or a file names",
        ),
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder of the data set.", show_default="data")
    ] = None,
    skip_unreadable: SkipUnreadable = False,
    images: Annotated[
        int | None,
        typer.Option(help="With --int8: training images to calibrate on.", show_default="300"),
    ] = None,
    mean: Annotated[
        str | None, typer.Option(help="Mean of the images, if the model does not state it.")
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Standard deviation of the images, in the same case.")
    ] = None,
    floor: Annotated[
        float | None,
        typer.Option(
            help="With --int8: least accuracy, as a share of that of the float file; below it, no "
            "file is written.",
            show_default="0.98",
        ),
    ] = None,
    calibration: Annotated[
        str | None,
        typer.Option(
            help=f"With --int8: how ranges of activations are chosen: {', '.join(CALIBRATIONS)}.",
            show_default=CALIBRATIONS[0],
        ),
    ] = None,
    reduce_range: Annotated[
        bool,
        typer.Option(
            "--reduce-range",
            help="With --int8: weights of 7 bits, for x86 processors without VNNI.",
        ),
    ] = False,
    input_shape: Shape = None,
    classes: Classes = None,
    width: Width = 1.0,
    builder: Builder = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Write a model to ONNX with a free batch size, checked against PyTorch before it is kept.

    The file states its input, normalisation and classes: dafp predict and dafp bench take it as it
    is. With --int8, a file of about a quarter of the size, measured beside the float file.

    Examples:

    dafp export small.safetensors --out small.onnx --fold-bn

    dafp export runs/default --int8 --out small.int8.onnx

    dafp export small.safetensors --int8 --data folder:photos --floor 0.99
    """
