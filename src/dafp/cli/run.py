"""The work of `dafp run`, `dafp finetune` and `dafp eval`."""

import json
from pathlib import Path

import typer

from ..choices import DISTILL
from ..errors import TrainingError
from ..report import write_report
from ..runs.pipeline import run as run_pipeline
from ..runs.saved_models import finetune as finetune_saved
from ..runs.saved_models import judge
from ..training.config import changed, make_config, read_settings
from ..training.run_directory import Paths, read_config
from ..training.run_records import RunResult
from .model_argument import find_here
from .printing import is_first_process, printer
from .progress import TerminalProgress, closing_table


def run(
    *,
    out: Path,
    preset: str | None,
    config: Path | None,
    settings: list[str] | None,
    model: str | None,
    data: str | None,
    target: float | None,
    seed: int | None,
    distill: bool,
    steps: int | None,
    recalibrate: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run all stages that are not finished yet, write the report and print the result."""
    given = all_settings(
        settings,
        model=model,
        data=data,
        target=target,
        seed=seed,
        steps=steps,
        distill=_share(distill, settings),
        recalibrate=recalibrate or None,
    )
    if Paths(out).config.exists() and not (given or preset or config):
        chosen = read_config(out)
    else:
        chosen = make_config(preset or "digits", config, given)
    find_here(chosen.model)
    with TerminalProgress(quiet=quiet or as_json or not is_first_process()) as progress:
        result = run_pipeline(chosen, out, progress)
    _show(result, out, as_json)


def all_settings(settings: list[str] | None, **named: object) -> list[str]:
    """The settings of --set, and those of options that are short for one."""
    given = [*(settings or [])]
    return given + [f"{k}={json.dumps(value)}" for k, value in named.items() if value is not None]


def _share(distill: object, settings: list[str] | None) -> float | None:
    """The teacher's share in the loss with --distill, unless --set gives one."""
    is_set = any(setting.replace(" ", "").startswith("distill=") for setting in settings or [])
    return DISTILL if distill and not is_set else None


def _show(result: RunResult, out: Path, as_json: bool) -> None:
    """Write the report of a finished run; print its closing table, or its JSON."""
    if not is_first_process():
        return
    page = write_report(out)
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = printer()
    console.print(closing_table(result["stages"]))
    if "sparsity" in result:
        console.print(_verdict(result), highlight=False)
    if "collapsed" not in result:  # a collapsed network is not saved
        console.print(f"model {Paths(out).model}", highlight=False)
    console.print(f"report {page}", highlight=False)


def _verdict(result: RunResult) -> str:
    if "collapsed" in result:
        return f"collapsed: {result['method']} left nothing of layer {result['collapsed']}"
    found = result["sparsity"]
    text = f"{found['removed']:.1%} of the prunable filters removed"
    if found["reached"] is not None:
        text = (
            f"sparsity {found['reached']:.3f} of {found['target']} asked at p={found['p']}, as a "
            f"share of {found['unit']}; " + text
        )
    return text


def finetune(
    *,
    file: Path,
    out: Path,
    preset: str,
    config: Path | None,
    settings: list[str] | None,
    distill: Path | None,
    recalibrate: bool,
    quiet: bool,
    as_json: bool,
) -> None:
    """Fine-tune the model of a file, write the report and print the result."""
    named = {"teacher": None if distill is None else str(distill)}
    share = _share(distill, settings)
    given = all_settings(settings, **named, distill=share, recalibrate=recalibrate or None)
    chosen = make_config(preset, config, given)
    find_here(chosen.model)
    with TerminalProgress(quiet=quiet or as_json or not is_first_process()) as progress:
        result = finetune_saved(chosen, file, out, progress)
    _show(result, out, as_json)


def evaluate(
    *,
    file: Path,
    preset: str | None,
    config: Path | None,
    settings: list[str] | None,
    as_json: bool,
) -> None:
    """Evaluate the model of a file or of a run, and print the numbers."""
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
