"""The options of `dafp inspect`."""

from typing import Annotated

import typer

from .shared import (
    AsJson,
    Builder,
    Classes,
    Keep,
    ModelName,
    Residual,
    Shape,
    Trust,
    Weights,
    Width,
)


def inspect(
    model: ModelName,
    weights: Weights = None,
    input_shape: Shape = None,
    classes: Classes = None,
    width: Width = 1.0,
    builder: Builder = None,
    trust: Trust = False,
    residual: Residual = "keep",
    keep: Keep = None,
    explain: Annotated[
        str | None,
        typer.Option(metavar="GROUP", help="Explain which layers this group is tied to, and why."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what can be pruned: groups, their producers and consumers, cost, what is kept and why.

    A group is what is removed together; every kept layer has its reason. --residual couple shows
    what can be removed if residual streams are pruned too.

    Examples:

    dafp inspect mynets:small --input 1,3,64,64

    dafp inspect runs/default

    dafp inspect torchvision:resnet50 --residual couple --explain layer1.0.conv1
    """
