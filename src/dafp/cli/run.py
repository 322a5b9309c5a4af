"""The commands of a run: `dafp run`."""

from pathlib import Path
from typing import Annotated

import torch
import typer

from ..errors import FileError
from .models import prune


def run(
    model: Annotated[str, typer.Option(help="Network to prune.")] = "preresnet20",
    ratio: Annotated[float, typer.Option(help="Share of filters to remove.")] = 0.5,
    out: Annotated[Path, typer.Option(help="Directory of the run.")] = Path("runs/default"),
) -> None:
    """Prune and verify a built-in network and print what became of it."""
    torch.manual_seed(0)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"cannot use {out} as a directory: {error.strerror}") from error
    prune(model, ratio=ratio, out=out / "pruned.safetensors")
