"""The options of `dafp sensitivity`."""

from pathlib import Path
from typing import Annotated

import typer

from .shared import (
    AsJson,
    Builder,
    ConfigFile,
    Data,
    ModelOrSaved,
    PresetIfAny,
    Quiet,
    Root,
    Settings,
    SkipUnreadable,
    Trust,
    Weights,
    Width,
)


def sensitivity(
    model: ModelOrSaved,
    weights: Weights = None,
    width: Width = 1.0,
    data: Data = None,
    root: Root = None,
    skip_unreadable: SkipUnreadable = False,
    preset: PresetIfAny = None,
    config: ConfigFile = None,
    settings: Settings = None,
    builder: Builder = None,
    trust: Trust = False,
    images: Annotated[
        int, typer.Option(help="Validation images to use, taken evenly; 0: all.", min=0)
    ] = 2000,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory for the page; by default that of the run, or sensitivity."),
    ] = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Show which layers are needed: accuracy when only this layer is pruned, by 10 % to 90 %.

    Measured on validation images, without training. Writes sensitivity.json and a page with a heat
    map; for a run, its report shows the map too. --set criterion=… chooses how channels are scored.

    Examples:

    dafp sensitivity runs/default

    dafp sensitivity resnet20 --weights resnet20.pth --preset cifar10

    dafp prune … --keep LAYER   (then leave the sensitive layers whole)
    """
