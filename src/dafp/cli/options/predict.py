"""The options of `dafp predict`."""

from pathlib import Path
from typing import Annotated

import typer

from .shared import AsJson, Builder, Classes, Shape, SkipUnreadable, Trust, Weights, Width


def predict(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A .safetensors file that dafp saved, an .onnx file that dafp exported, the "
            "directory of a run, or a network by name (vgg16, timm:NAME, "
            "package.module:function) with --weights.",
        ),
    ],
    images: Annotated[
        list[Path], typer.Argument(metavar="IMAGE...", help="Images, or directories of images.")
    ],
    top: Annotated[int, typer.Option(help="Classes to show for each image.", min=1)] = 1,
    weights: Weights = None,
    shape: Shape = None,
    classes: Classes = None,
    width: Width = 1.0,
    mean: Annotated[
        str | None, typer.Option(help="Mean of the images, if the model does not state it.")
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Standard deviation of the images, in the same case.")
    ] = None,
    skip_unreadable: SkipUnreadable = False,
    builder: Builder = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Classify images: resized, cropped and normalised as the model was trained.

    Examples:

    dafp predict runs/default photo.png --top 3

    dafp predict small.onnx photos/ --json

    dafp predict timm:resnet18 photo.png --weights r18.pth --classes 10
    """
