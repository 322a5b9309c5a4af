"""The work of `dafp eval`."""

import json
from pathlib import Path

import typer

from ..errors import TrainingError
from ..runs.saved_models import judge
from ..training.config import changed, make_config, read_settings
from ..training.run_directory import Paths, read_config
from .model_argument import find_here
from .printing import printer


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
