"""The work of `dafp reproduce`: the paper's tables and figures, each by one command."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table

from ..errors import TrainingError
from ..report.formatting import seconds
from ..reproduce import NAMES, Item, find, jobs_of, outliers, with_settings
from ..reproduce.estimate import estimate
from ..reproduce.outliers import Repeats
from ..reproduce.page import HEAD, Answer, answers, cells, reproduction_page, to_json
from ..runs.job_hash import config_hash
from ..storage.atomic_write import write_atomically
from ..sweeps import SweepPaths, describe, missing, sweep
from ..sweeps.jobs import Sweep
from ..sweeps.results_store import read_records
from ..training.config import Config, read_settings
from .compare import words
from .printing import printer
from .progress import TerminalProgress
from .sweep_options import cluster_of, refuse_failures, sweep_paths


def reproduce(
    *,
    name: str | None,
    profile: str,
    list_: bool,
    dry_run: bool,
    rows: str,
    runs: int | None,
    repeat_outliers: bool,
    settings: list[str] | None,
    out: Path | None,
    results: Path | None,
    ray: str | None,
    cpus: int,
    gpus: float,
    retries: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """List tables, rows or jobs; or run the jobs, write the page and print the table."""
    if name is None:
        if not list_:
            raise TrainingError(f"give the name of a table or figure: {', '.join(NAMES)}")
        _list_names(profile, as_json)
        return
    item = find(name, profile, words(rows))
    if list_:
        _list_rows(item, as_json)
        return
    given = list(settings or [])
    item = with_settings(item, read_settings(given), "--set")
    count = runs if runs is not None else item.runs if profile == "paper" else 3
    jobs = jobs_of(item, count)
    home = out or Path(f"runs/reproduce-{profile}")
    paths = sweep_paths(home, results)
    cluster = cluster_of(ray, cpus, gpus, retries)
    if dry_run:
        _list_jobs(jobs, paths, as_json)
        return
    with TerminalProgress(quiet=quiet or as_json) as progress:
        done = sweep(jobs, paths, progress, cluster)
        repeats: Repeats = {}
        if repeat_outliers:
            repeats = outliers.repeat_outliers(
                item, count, done, lambda more: sweep(more, paths, progress, cluster)
            )
    home.mkdir(parents=True, exist_ok=True)
    path = home / f"{name}.html"
    command = f"dafp {' '.join(sys.argv[1:])}"
    aside = ("root=", "threads=", "tracker=")
    changes = [text for text in given if not text.replace(" ", "").startswith(aside)]
    text = reproduction_page(item, profile, count, done, changes, command, repeats)
    write_atomically(path, text.encode())
    _show(answers(item, count, done, repeats), profile, path, as_json)
    refuse_failures(done)


def _show(found: list[Answer], profile: str, path: Path, as_json: bool) -> None:
    if as_json:
        value = {"profile": profile, "figures": [to_json(one) for one in found], "page": str(path)}
        typer.echo(json.dumps(value))
        return
    table = Table(title=f"the paper's figures and ours, profile {profile}", title_justify="left")
    for at, column in enumerate(HEAD[:-1]):
        table.add_column(column, justify="right" if at > 1 else "left", overflow="fold")
    for one in found:
        line = cells(one)[:-1]
        table.add_row(*(c if isinstance(c, str) else f"{c.text} {c.note}".strip() for c in line))
    console = printer()
    console.print(table)
    console.print(f"page {path}", highlight=False)


def _list_names(profile: str, as_json: bool) -> None:
    items = [find(name, profile) for name in NAMES]
    if as_json:
        typer.echo(
            json.dumps([{"name": i.name, "title": i.title, "rows": len(i.rows)} for i in items])
        )
        return
    table = Table(title="what can be reproduced", title_justify="left")
    for column in ("name", "rows", "what"):
        table.add_column(column, justify="right" if column == "rows" else "left")
    for item in items:
        table.add_row(item.name, str(len(item.rows)), item.title)
    printer().print(table)


def _list_rows(item: Item, as_json: bool) -> None:
    lines: list[dict[str, Any]] = [
        {
            "number": number,
            "row": row.name,
            "printed": {f.name: f.printed for f in row.figures},
            "note": row.note,
        }
        for number, row in enumerate(item.rows, 1)
    ]
    if as_json:
        typer.echo(json.dumps(lines))
        return
    table = Table(title=item.title, title_justify="left")
    for column in ("number", "row", "printed in the paper", "note"):
        table.add_column(column, overflow="fold")
    for line in lines:
        printed = ", ".join(f"{k.replace('_', ' ')} {v}" for k, v in line["printed"].items() if v)
        table.add_row(str(line["number"]), line["row"], printed, line["note"])
    printer().print(table)


def _list_jobs(jobs: list[Config], paths: SweepPaths, as_json: bool) -> None:
    """Print the jobs, which of them are done, and an estimate of the time for the others."""
    done = Sweep(read_records(paths, jobs))
    todo = missing(jobs, done)
    found = estimate(todo, paths)
    if as_json:
        lines = [
            {"hash": config_hash(c), "job": describe(c), "done": done.of(c) is not None}
            for c in jobs
        ]
        typer.echo(json.dumps({"jobs": lines, "left": len(todo), **dataclasses.asdict(found)}))
        return
    console = Console(soft_wrap=True)
    for config in jobs:
        state = "done" if done.of(config) else "to do"
        console.print(f"{config_hash(config)}  {state:<5}  {describe(config)}", highlight=False)
    console.print(
        f"{len(todo)} of {len(jobs)} jobs to do: {found.trainings} training stages (shared ones "
        f"counted once), {found.epochs} epochs, about {seconds(found.seconds_s)} here, one by one",
        highlight=False,
    )
    for where, each in found.epoch_s.items():
        console.print(f"measured: {where}, {seconds(each)} per epoch", highlight=False)
