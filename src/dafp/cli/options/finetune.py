"""The options of `dafp finetune`."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import DISTILL
from .shared import AsJson, ConfigFile, Preset, Quiet, Recalibrate, Settings


def finetune(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Model that dafp saved.")],
    out: Annotated[Path, typer.Option(help="Directory of the run.")] = Path("runs/finetune"),
    preset: Preset = "digits",
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
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a saved model, pruned or not, by the fine-tuning schedule.

    A model that is not built in needs its builder: --set model=package.module:function.

    Examples:

    dafp finetune small.safetensors --preset cifar10-lite --set finetune.epochs=10

    dafp finetune small.safetensors --distill large.safetensors --recalibrate
    """
