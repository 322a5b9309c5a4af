"""`dafp run`: train under controlled sparsity, prune, finetune, and show what became of it."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ..config import PRESETS, make_config
from ..pipeline import Paths, read_config
from ..pipeline import run as run_pipeline
from ..report import write_report
from .options import AsJson
from .progress import Progress, closing_table


def run(
    out: Annotated[
        Path, typer.Option(help="Directory of the run, its whole state.")
    ] = Path("runs/default"),
    preset: Annotated[
        str | None, typer.Option(help=f"Settings to start from: {', '.join(PRESETS)}.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file that changes the preset.")
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="The same as --set model=…")] = None,
    data: Annotated[str | None, typer.Option(help="The same as --set data=…")] = None,
    target: Annotated[float | None, typer.Option(help="Share of filters to remove.")] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.")] = None,
    quiet: Annotated[bool, typer.Option(help="Show no progress.")] = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Train a network under automatically controlled sparsity, prune it and finetune it.

    Without options: VGG-16 (a quarter of its width) on the embedded digits, half of the filters.
    A run that was interrupted goes on with the same command; a finished one shows its result.

    Examples:

    dafp run --target 0.6 --seed 1 --out runs/digits-60

    dafp run --preset cifar10-lite --model preresnet20 --set sparse.epochs=40 --out runs/pre20
    """
    given = list(settings or [])
    given += [
        f"{key}={json.dumps(value)}"
        for key, value in (("model", model), ("data", data), ("target", target), ("seed", seed))
        if value is not None
    ]
    if Paths(out).config.exists() and not (given or preset or config):
        chosen = read_config(out)
    else:
        chosen = make_config(preset or "digits", config, given)
    with Progress(quiet=quiet or as_json) as progress:
        result = run_pipeline(chosen, out, progress)
    page = write_report(out)
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = Console()
    console.print(closing_table(result["stages"]))
    reached = result["sparsity"]
    console.print(
        f"sparsity {reached['reached']:.3f} of {reached['target']} asked at p={reached['p']}; "
        f"{reached['removed']:.1%} of the prunable filters removed",
        highlight=False,
    )
    console.print(f"model {Paths(out).model}\nreport {page}", highlight=False)
