"""The options of `dafp run`."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import DISTILL, RULES, TAKE_RULE
from .shared import (
    AsJson,
    ConfigFile,
    Data,
    Keep,
    MinChannels,
    PresetIfAny,
    Quiet,
    Recalibrate,
    Root,
    RoundTo,
    SetModel,
    Settings,
    SkipUnreadable,
)


def run(
    out: Annotated[Path, typer.Option(help="Directory of the run, its whole state.")] = Path(
        "runs/default"
    ),
    preset: PresetIfAny = None,
    config: ConfigFile = None,
    settings: Settings = None,
    model: SetModel = None,
    data: Data = None,
    root: Root = None,
    size: Annotated[
        int | None, typer.Option(help="Edge of the input, for images of your own.", min=1)
    ] = None,
    skip_unreadable: SkipUnreadable = False,
    target: Annotated[
        str | None,
        typer.Option(
            help="What to remove as UNIT=SHARE, e.g. macs=0.5, or what may be left, e.g. macs=2G, "
            "params=5M, latency=10ms; units: filters, params, macs, latency (measured on this "
            "machine). A number alone is a share of filters, or of --set unit=…."
        ),
    ] = None,
    runtime: Annotated[
        str | None,
        typer.Option(help="For a target of latency: eager or onnx.", show_default="eager"),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            help=f"One of {', '.join(RULES)}; for the methods {', '.join(TAKE_RULE)}.",
            show_default="that of the method",
        ),
    ] = None,
    round_to: RoundTo = None,
    min_channels: MinChannels = None,
    keep: Keep = None,
    seed: Annotated[int | None, typer.Option(help="Seed of everything random.")] = None,
    distill: Annotated[
        bool,
        typer.Option(
            "--distill",
            help="Use the network before pruning as teacher in fine-tuning: its outputs make up "
            f"{DISTILL:.0%} of the loss (--set distill=0.5 for another share, --set "
            "temperature=4).",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Prune in this many equal steps, the epochs of fine-tuning split over them; for "
            "methods that prune a trained network: --set method=one-shot, l1-norm, …"
        ),
    ] = None,
    recalibrate: Recalibrate = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a network under automatically controlled sparsity, prune it and fine-tune it.

    Without options: VGG-16 (a quarter of its width) on the embedded digits, half of the filters.
    The same command continues an interrupted run; for a finished one, it shows the result.

    Examples:

    dafp run --target macs=0.6 --seed 1 --out runs/digits-60

    dafp run --target latency=0.5 --runtime onnx --out runs/fast   (measured on this machine)

    dafp run --model mynets:small --data folder:photos --size 64 --target macs=0.5 --out runs/mine

    dafp run --preset cifar10-lite --model preresnet20 --set sparse.epochs=40 --out runs/pre20

    dafp run --set method=one-shot --steps 5 --distill --out runs/steps   (loses less accuracy)
    """
