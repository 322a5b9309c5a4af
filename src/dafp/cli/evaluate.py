"""The work of `dafp eval`."""

import json
from pathlib import Path

import typer

from ..report.speed import BUSY
from ..runs.saved_models import judge
from .model_settings import model_settings
from .printing import printer, say
from .setting_options import all_settings


def evaluate(
    *,
    model: str,
    weights: Path | None,
    width: float,
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
    """Evaluate the model and print the numbers."""
    chosen, file = model_settings(
        model,
        weights=weights,
        width=width,
        builder=builder,
        trust=trust,
        preset=preset,
        config=config,
        settings=all_settings(settings, skip_unreadable=skip_unreadable or None),
        data=data,
        root=root,
    )
    found = judge(chosen, file, trust, None if as_json else say)
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
