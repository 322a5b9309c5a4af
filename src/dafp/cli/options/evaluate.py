"""The options of `dafp eval`."""

from pathlib import Path
from typing import Annotated

import typer

from .shared import AsJson, ConfigFile, PresetIfAny, Settings


def evaluate(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Model that dafp saved, or a run's directory.")
    ],
    preset: PresetIfAny = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Accuracy, cost and latency of a saved model on the test images.

    Examples: dafp eval runs/default, dafp eval small.safetensors --preset cifar10-lite
    """
