"""The work of `dafp eval`."""

import json
from pathlib import Path

import typer

from ..report.speed import BUSY
from ..runs.loading import saved_file
from ..runs.saved_models import judge
from .model_argument import find_builder
from .printing import printer, say
from .setting_options import all_settings, config_for_saved


def evaluate(
    *,
    file: Path,
    data: str | None,
    root: Path | None,
    skip_unreadable: bool,
    preset: str | None,
    config: Path | None,
    settings: list[str] | None,
    builder: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Evaluate the model of a file or of a run, and print the numbers."""
    given = all_settings(settings, model=builder, skip_unreadable=skip_unreadable or None)
    chosen = config_for_saved(file, preset, config, given, data, root)
    find_builder(chosen.model, trust)
    found = judge(chosen, saved_file(file), trust, None if as_json else say)
    if as_json:
        typer.echo(json.dumps(found))
        return
    busy = found["latency_doubt"]
    latency = f"latency: {BUSY} ({busy})" if busy else f"{found['latency_s'] * 1000:.2f} ms"
    printer().print(
        f"{found['accuracy']:.2%} of {found['images']:,} test images of {found['data']}; loss "
        f"{found['loss']:.4f}, {found['params']:,} parameters, {found['macs']:,} multiply-adds, "
        f"{latency}",
        highlight=False,
    )
