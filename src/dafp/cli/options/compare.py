"""The options of `dafp compare`."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import METHODS
from .shared import (
    AsJson,
    ConfigFile,
    Cpus,
    Data,
    Gpus,
    Preset,
    Quiet,
    Ray,
    Results,
    Retries,
    Root,
    SetModel,
    Settings,
    SkipUnreadable,
)


def compare(
    methods: Annotated[
        str, typer.Option(help=f"Separated by commas: {', '.join(METHODS)}.")
    ] = "dafp,slm,l1-norm",
    ratios: Annotated[
        str | None,
        typer.Option(
            help="Shares of the multiply-adds to remove, separated by commas; of another unit with "
            "--set unit=filters.",
            show_default="0.3,0.5",
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="Instead of --ratios, with the unit: macs=0.3,0.5 removes these shares, "
            "macs=2G,1G leaves these amounts; units: filters, params, macs."
        ),
    ] = None,
    seeds: Annotated[str, typer.Option(help="Separated by commas, or 0-2.")] = "0-2",
    preset: Preset = "digits",
    config: ConfigFile = None,
    settings: Settings = None,
    model: SetModel = None,
    data: Data = None,
    root: Root = None,
    skip_unreadable: SkipUnreadable = False,
    out: Annotated[Path, typer.Option(help="Directory of runs and page.")] = Path("runs/compare"),
    results: Results = None,
    ray: Ray = None,
    cpus: Cpus = 1,
    gpus: Gpus = 0,
    retries: Retries = 3,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Compare methods on the same training code: a table, curves, and OUT/index.html.

    Finished jobs are not repeated: after an interruption, the same command does what is missing.
    What jobs have in common (the baseline, one sparse training per λ) is trained once.

    Examples:

    dafp compare --methods dafp,slm,random --target macs=0.3,0.5,0.7 --seeds 0-2

    dafp compare --preset cifar10-lite --model preresnet20 --ray local --cpus 2
    """
