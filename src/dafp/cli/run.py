"""`dafp run`, `dafp finetune`, `dafp eval`: the training program and what it leaves."""

import json
import os
from pathlib import Path
from typing import Annotated

import typer

from ..errors import TrainingError
from ..report import write_report
from ..runs.pipeline import run as run_pipeline
from ..runs.saved_models import finetune as finetune_saved
from ..runs.saved_models import judge
from ..training.config import DISTILL, PRESETS, changed, make_config, read_settings
from ..training.run_directory import Paths, Result, read_config
from .options import AsJson, find_here
from .printing import printer
from .progress import Progress, closing_table

_PRESET = typer.Option(help=f"Settings to start from: {', '.join(PRESETS)}.")
Preset = Annotated[str, _PRESET]
PresetIfAny = Annotated[str | None, _PRESET]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="TOML file that changes the preset.")
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting; may be repeated."),
]
Recalibrate = Annotated[
    bool,
    typer.Option("--recalibrate", help="Estimate BN statistics anew first, on training images."),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Show no progress.")]


def run(
    out: Annotated[
        Path, typer.Option(help="Directory of the run, its whole state.")
    ] = Path("runs/default"),
    preset: PresetIfAny = None,
    config: ConfigFile = None,
    settings: Settings = None,
    model: Annotated[str | None, typer.Option(help="The same as --set model=…")] = None,
    data: Annotated[str | None, typer.Option(help="The same as --set data=…")] = None,
    target: Annotated[
        float | None, typer.Option(help="Share to remove, of filters or of what --set unit=… says.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random follows from it.")] = None,
    distill: Annotated[
        bool,
        typer.Option(
            "--distill",
            help=f"The network before pruning teaches in finetuning: {DISTILL:.0%} of the loss is "
            "what it answers (--set distill=0.5 for another share, --set temperature=4).",
        ),
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            help="Prune in so many equal steps, the epochs of finetuning split over them; for "
            "methods that prune a trained network: --set method=one-shot, l1-norm, …"
        ),
    ] = None,
    recalibrate: Recalibrate = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:  # fmt: skip
    """Train a network under automatically controlled sparsity, prune it and finetune it.

    Without options: VGG-16 (a quarter of its width) on the embedded digits, half of the filters.
    A run that was interrupted goes on with the same command; a finished one shows its result.

    Examples:

    dafp run --target 0.6 --seed 1 --out runs/digits-60

    dafp run --preset cifar10-lite --model preresnet20 --set sparse.epochs=40 --out runs/pre20

    dafp run --set method=one-shot --steps 5 --distill --out runs/steps   (more accuracy back)
    """
    given = all_settings(
        settings, model=model, data=data, target=target, seed=seed, steps=steps,
        distill=_share(distill, settings), recalibrate=recalibrate or None,
    )  # fmt: skip
    if Paths(out).config.exists() and not (given or preset or config):
        chosen = read_config(out)
    else:
        chosen = make_config(preset or "digits", config, given)
    find_here(chosen.model)
    with Progress(quiet=quiet or as_json or not _speaks()) as progress:
        result = run_pipeline(chosen, out, progress)
    _show(result, out, as_json)


def all_settings(settings: list[str] | None, **named: object) -> list[str]:
    """What --set says, and the options that are short for it."""
    given = [*(settings or [])]
    return given + [f"{k}={json.dumps(value)}" for k, value in named.items() if value is not None]


def _share(distill: object, settings: list[str] | None) -> float | None:
    """What --distill alone means; a share that --set gives is kept."""
    said = any(setting.replace(" ", "").startswith("distill=") for setting in settings or [])
    return DISTILL if distill and not said else None


def _speaks() -> bool:
    """Of several processes (torchrun, accelerate launch) the first one speaks."""
    return os.environ.get("RANK", "0") == "0"


def _show(result: Result, out: Path, as_json: bool) -> None:
    """Write the report of a run that has ended; print its closing table, or its JSON."""
    if not _speaks():
        return
    page = write_report(out)
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = printer()
    console.print(closing_table(result["stages"]))
    if "sparsity" in result:
        console.print(_verdict(result), highlight=False)
    if "collapsed" not in result:  # then nothing was left to save
        console.print(f"model {Paths(out).model}", highlight=False)
    console.print(f"report {page}", highlight=False)


def _verdict(result: Result) -> str:
    if "collapsed" in result:
        return f"collapsed: {result['method']} left nothing of layer {result['collapsed']}"
    found = result["sparsity"]
    text = f"{found['removed']:.1%} of the prunable filters removed"
    if found["reached"] is not None:
        text = (
            f"sparsity {found['reached']:.3f} of {found['target']} asked at p={found['p']}; " + text
        )
    return text


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
            help=f"Model file of the network before pruning, which teaches: {DISTILL:.0%} of the "
            "loss is what it answers (--set distill=0.5 for another share).",
        ),
    ] = None,
    recalibrate: Recalibrate = False,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a saved model, pruned or not, by the finetuning schedule.

    A model that is not one of ours is built first: --set model=package.module:function.

    Examples:

    dafp finetune small.safetensors --preset cifar10-lite --set finetune.epochs=10

    dafp finetune small.safetensors --distill large.safetensors --recalibrate
    """
    named = {"teacher": None if distill is None else str(distill)}
    share = _share(distill, settings)
    given = all_settings(settings, **named, distill=share, recalibrate=recalibrate or None)
    chosen = make_config(preset, config, given)
    find_here(chosen.model)
    with Progress(quiet=quiet or as_json or not _speaks()) as progress:
        result = finetune_saved(chosen, file, out, progress)
    _show(result, out, as_json)


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
    if not file.is_dir():
        chosen = make_config(preset or "digits", config, settings)
    elif preset or config:
        raise TrainingError(f"{file} is a run with its own configuration; --set changes some of it")
    else:
        chosen = changed(read_config(file), read_settings(settings or []), "--set")
        file = Paths(file).model
    find_here(chosen.model)
    found = judge(chosen, file)
    if as_json:
        typer.echo(json.dumps(found))
        return
    printer().print(
        f"{found['accuracy']:.2%} of {found['images']:,} test images of {found['data']}; loss "
        f"{found['loss']:.4f}, {found['params']:,} parameters, {found['macs']:,} multiply-adds, "
        f"{found['latency_s'] * 1000:.2f} ms",
        highlight=False,
    )
