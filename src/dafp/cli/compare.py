"""The work of `dafp compare`: methods × ratios × seeds on one network and data set."""

import json
import sys
from pathlib import Path

import typer
from rich.table import Table

from ..errors import PlanError, TrainingError
from ..runs.pipeline import share_of_amount
from ..selection.target_value import Target, in_percent, parse_target
from ..storage.atomic_write import write_atomically
from ..sweeps import sweep
from ..sweeps.comparison import HEAD, Entry, cells, comparison_page, entries, grid, to_json
from ..training.config import make_config, read_settings, read_toml, to_toml
from .model_argument import find_here
from .printing import printer
from .progress import TerminalProgress
from .setting_options import all_settings, data_settings
from .sweep_options import cluster_of, refuse_failures, sweep_paths

RATIOS = "0.3,0.5"
TERMINAL = ("method", "ratio", "epochs", "before fine-tuning", "accuracy", "n", "MACs left")


def compare(
    *,
    methods: str,
    ratios: str | None,
    target: str | None,
    seeds: str,
    preset: str,
    config: Path | None,
    settings: list[str] | None,
    model: str | None,
    data: str | None,
    root: Path | None,
    skip_unreadable: bool,
    out: Path,
    results: Path | None,
    ray: str | None,
    cpus: int,
    gpus: float,
    retries: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run the jobs that are missing, write the page and print the table."""
    wanted = targets_of(target, ratios, _unit(config, settings))
    given = all_settings(
        settings,
        model=model,
        unit=wanted[0].unit,
        skip_unreadable=skip_unreadable or None,
        **data_settings(data, root),
    )
    base = make_config(preset, config, given)
    find_here(base.model)
    cluster = cluster_of(ray, cpus, gpus, retries)
    shares = [one.share or share_of_amount(base, one) for one in wanted]
    configs = grid(base, words(methods), shares, seed_list(seeds))
    with TerminalProgress(quiet=quiet or as_json) as progress:
        done = sweep(configs, sweep_paths(out, results), progress, cluster)
    lines = entries(configs, done)
    path = out / "index.html"
    out.mkdir(parents=True, exist_ok=True)
    command = f"dafp {' '.join(sys.argv[1:])}"
    write_atomically(path, comparison_page(base, lines, done, to_toml(base), command).encode())
    if as_json:
        typer.echo(json.dumps({"entries": [to_json(one) for one in lines], "page": str(path)}))
    else:
        console = printer()
        console.print(shown_table(lines))
        console.print(f"page {path}", highlight=False)
    refuse_failures(done)


def shown_table(lines: list[Entry]) -> Table:
    """The comparison for the terminal."""
    table = Table(title="methods compared, percent", title_justify="left")
    for name in TERMINAL:
        table.add_column(name, justify="left" if name == "method" else "right", overflow="fold")
    for one in lines:
        row = dict(zip(HEAD, cells(one), strict=True))
        chosen = (row[name] for name in TERMINAL)
        table.add_row(*(c if isinstance(c, str) else f"{c.text} {c.note}".strip() for c in chosen))
    return table


def words(text: str) -> list[str]:
    """Split a text at its commas; empty parts are left out."""
    return [word.strip() for word in text.split(",") if word.strip()]


def seed_list(text: str) -> list[int]:
    """Seeds from a text such as 0,3 or 0-2."""
    seeds: list[int] = []
    for word in words(text):
        first, dash, last = word.partition("-")
        try:
            seeds += range(int(first), int(last) + 1) if dash else [int(first)]
        except ValueError as error:
            raise TrainingError(f"--seeds {text!r}: write 0,1,2 or 0-2") from error
    return seeds


def targets_of(target: str | None, ratios: str | None, unit: str) -> list[Target]:
    """The targets of --target or --ratios, all in one unit; the unit of a bare number is given."""
    if target is None:
        shares = words(RATIOS if ratios is None else ratios)
        if not shares:
            raise PlanError(f"--ratios {ratios!r} names no share; write --ratios 0.3,0.5")
        return [Target(unit, share=_ratio(text)) for text in shares]
    if ratios is not None:
        raise PlanError(f"--target {target} says what to remove; leave --ratios out")
    found: list[Target] = []
    for text in words(target):
        found.append(parse_target(text, found[-1].unit if found else unit))
    units = sorted({one.unit for one in found})
    if len(units) != 1:
        raise PlanError(f"--target {target!r}: give one unit, e.g. macs=0.3,0.5")
    if units == ["latency"]:
        raise PlanError(
            f"--target {target}: a comparison removes filters, params or macs; latency is measured "
            "on one machine: dafp run --target latency=0.5 --set method=…"
        )
    return found


def _unit(config: Path | None, settings: list[str] | None) -> str:
    """The unit of --set or of the configuration file, else multiply-adds."""
    unit = read_settings(settings or []).get("unit") or (
        None if config is None else read_toml(config).get("unit")
    )
    return unit if isinstance(unit, str) else "macs"


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError as error:
        raise TrainingError(f"--ratios: {text!r} is not a number; write 0.3,0.5") from error
    if not 0 < ratio < 1:
        raise PlanError(
            f"--ratios {text}: shares to remove, each between 0 and 1{in_percent(ratio)}"
        )
    return ratio
