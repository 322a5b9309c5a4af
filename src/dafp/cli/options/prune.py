"""The options of `dafp prune`."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import CRITERIA, CRITERIA_WITH_DATA, DATA_SETS, RULES, TARGET_UNITS
from .shared import (
    AsJson,
    Builder,
    Classes,
    Keep,
    MinChannels,
    ModelName,
    Residual,
    RoundTo,
    Shape,
    SkipUnreadable,
    Trust,
    Weights,
    Width,
)


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
            help="What to remove as UNIT=SHARE, e.g. macs=0.5, or what may be left as UNIT=AMOUNT, "
            "e.g. macs=2G, params=5M, latency=10ms; units: " + ", ".join(TARGET_UNITS)
        ),
    ] = None,
    runtime: Annotated[str, typer.Option(help="For a target of latency: eager or onnx.")] = "eager",
    batch: Annotated[int, typer.Option(help="For a target of latency: batch size.")] = 1,
    threads: Annotated[int, typer.Option(help="For a target of latency: threads.")] = 1,
    data: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|folder:DIR",
            help="Images to choose channels and widths by and to rebuild the weights with, without "
            f"training: {', '.join(DATA_SETS)}, or folder:DIR.",
        ),
    ] = None,
    root: Annotated[Path, typer.Option(help="Folder of the data set.")] = Path("data"),
    skip_unreadable: SkipUnreadable = False,
    images: Annotated[int, typer.Option(help="Training images to use, with --data.")] = 1000,
    mean: Annotated[
        str | None, typer.Option(help="Mean of the images, e.g. 0.485,0.456,0.406.")
    ] = None,
    std: Annotated[
        str | None, typer.Option(help="Standard deviation of the images, e.g. 0.229,0.224,0.225.")
    ] = None,
    fast: Annotated[
        bool,
        typer.Option("--fast", help="With --data: the same share of every layer, not measured."),
    ] = False,
    damage: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.json",
            help="With --data: file of the measured widths. If it exists, it is used instead of "
            "measuring again, for any target; else it is written, and a page with a heat map.",
        ),
    ] = None,
    data_free: Annotated[
        bool, typer.Option("--data-free", help="Use no images, even if the model names some.")
    ] = False,
    criterion: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join((*CRITERIA, *CRITERIA_WITH_DATA))}.",
            show_default="the best for what is given",
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(RULES)}.",
            show_default="widths by measured damage; without --data, by expected damage",
        ),
    ] = None,
    round_to: RoundTo = None,
    min_channels: MinChannels = None,
    compensate: Annotated[
        bool,
        typer.Option(help="Without --data: make up for the mean and variance of removed channels."),
    ] = True,
    out: Annotated[Path, typer.Option(help="File for the pruned model.")] = Path(
        "pruned.safetensors"
    ),
    input_shape: Shape = None,
    classes: Classes = None,
    width: Width = 1.0,
    builder: Builder = None,
    trust: Trust = False,
    residual: Residual = "keep",
    keep: Keep = None,
    as_json: AsJson = False,
) -> None:
    """Prune a model, verify it against the masked model, and write it to a .safetensors file.

    With --data, images (no labels) choose what to remove, and the weights that are left are rebuilt
    with them: most of the accuracy stays without any training.

    Examples:

    dafp prune vgg16 --weights vgg16.pth --data cifar10 --target macs=0.5 --out small.safetensors

    dafp prune timm:resnet18 --weights r18.pth --data folder:photos --fast

    dafp prune vgg16 --weights vgg16.pth --target params=0.5   (no images)
    """
