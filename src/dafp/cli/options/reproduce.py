"""The options of `dafp reproduce`."""

from pathlib import Path
from typing import Annotated

import typer

from ...choices import FIGURES, TABLES
from .shared import AsJson, Cpus, Gpus, Quiet, Ray, Results, Retries, Settings


def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(metavar="NAME", help=f"One of {', '.join((*TABLES, *FIGURES))}."),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            help="'paper': its networks, images and epochs, which takes GPUs; 'lite': the same at "
            "a scale that one CPU can do."
        ),
    ] = "lite",
    list_: Annotated[
        bool, typer.Option("--list", help="List the tables and figures, or the rows of NAME.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only list the jobs, and how long they take here.")
    ] = False,
    rows: Annotated[
        str, typer.Option(help="Only these: numbers or patterns (vgg16/*), separated by commas.")
    ] = "",
    runs: Annotated[
        int | None, typer.Option(help="Number of seeds; by default that of the paper, 3 for lite.")
    ] = None,
    repeat_outliers: Annotated[
        bool,
        typer.Option(
            "--repeat-outliers",
            help="Drop runs of slm that collapse or end 10 points below the mean, and run other "
            "seeds for them, as the paper does.",
        ),
    ] = False,
    settings: Settings = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Directory of runs and page; by default runs/reproduce-PROFILE."),
    ] = None,
    results: Results = None,
    ray: Ray = None,
    cpus: Cpus = 1,
    gpus: Gpus = 0,
    retries: Retries = 3,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Reproduce a table or figure of the paper: its values beside ours, in OUT/NAME.html.

    The paper is Dependency Aware Filter Pruning, https://arxiv.org/abs/2005.02634. Finished jobs
    are not repeated, whichever table needed them.

    Examples:

    dafp reproduce --list

    dafp reproduce ablation-importance --rows 'vgg16/*' --dry-run

    dafp reproduce cifar10 --profile paper --ray auto --gpus 1 --cpus 4
    """
