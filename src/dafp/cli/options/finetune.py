"""The options of `dafp finetune`."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import DISTILL
from .shared import (
    AsJson,
    Builder,
    ConfigFile,
    Data,
    ModelOrSaved,
    PresetIfAny,
    Quiet,
    Recalibrate,
    Root,
    Settings,
    SkipUnreadable,
    Trust,
    Weights,
    Width,
)


def finetune(
    model: ModelOrSaved,
    weights: Weights = None,
    width: Width = 1.0,
    out: Annotated[Path, typer.Option(help="Directory of the run.")] = Path("runs/finetune"),
    data: Data = None,
    root: Root = None,
    skip_unreadable: SkipUnreadable = False,
    preset: PresetIfAny = None,
    config: ConfigFile = None,
    settings: Settings = None,
    distill: Annotated[
        Path | None,
        typer.Option(
            metavar="TEACHER",
            help="Model file of the network before pruning, used as teacher: its outputs make up "
            f"{DISTILL:.0%} of the loss (--set distill=0.5 for another share).",
        ),
    ] = None,
    recalibrate: Recalibrate = False,
    builder: Builder = None,
    trust: Trust = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a trained model, pruned or not, by the fine-tuning schedule.

    For a pruned one, the learning rate falls from 0.01 to 0 by a cosine (--set finetune.lr=… for
    another); with --distill the network before pruning is the teacher: best for few epochs.

    A saved file names its network and its data set; --trust imports a function of your own.

    Examples:

    dafp finetune small.safetensors --data folder:photos --set finetune.epochs=10

    dafp finetune small.safetensors --distill large.safetensors --recalibrate

    dafp finetune timm:resnet18 --weights r18.pth --data folder:photos
    """
