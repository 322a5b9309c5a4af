"""The work of `dafp sensitivity`: accuracy when one layer alone is pruned."""

from pathlib import Path

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from ..recovery.sensitivity import Sensitivity
from ..report import write_report, write_sensitivity
from ..runs.saved_models import try_layers
from ..training.loop import NoProgress
from .model_settings import model_settings
from .printing import printer, table_of
from .setting_options import all_settings


class Bar(NoProgress):
    """A progress bar with one step per layer."""

    def __init__(self, quiet: bool) -> None:
        console = Console(stderr=True, quiet=quiet)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(24),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )

    def stage(self, name: str, epochs: int, steps: int, done: int = 0, later: int = 0) -> None:
        self.bar.start()
        self.bar.add_task(name, total=epochs * steps)

    def say(self, text: str) -> None:
        self.bar.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def step(self, loss: float | None = None) -> None:
        self.bar.advance(self.bar.task_ids[-1])


def sensitivity(
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
    images: int,
    out: Path | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Prune each layer alone, write the page and print the table."""
    path = Path(model)
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
    bar = Bar(quiet or as_json)
    try:
        found = try_layers(chosen, file, images, bar, trust)
    finally:
        if bar.bar.live.is_started:  # an error before the first layer leaves no empty line
            bar.bar.stop()
    where = out or (path if path.is_dir() else Path("sensitivity"))
    page = write_sensitivity(found, where)
    if path.is_dir() and where == path:
        write_report(path)
    if as_json:
        typer.echo(found.to_json())
        return
    console = printer()
    console.print(sensitivity_table(found))
    console.print(
        f"{found.accuracy:.2%} of {found.about['images']:,} validation images as it is; "
        f"page {page}",
        highlight=False,
    )


def sensitivity_table(found: Sensitivity) -> Table:
    """One row per layer; yellow for a loss of at least one point, red for at least five."""
    ratios = [f"{ratio:.0%}" for ratio in found.ratios]
    title = "accuracy (%) when only this layer is pruned"
    table = table_of(title, ["layer"], ["channels", *ratios])
    for layer in found.layers:
        cells = [_cell(value, found.accuracy) for value in layer.accuracy]
        table.add_row(escape(layer.name), str(layer.channels), *cells)
    return table


def _cell(accuracy: float | None, whole: float) -> str:
    if accuracy is None:
        return "–"
    lost = whole - accuracy
    colour = "red" if lost >= 0.05 else "yellow" if lost >= 0.01 else ""
    text = f"{100 * accuracy:.1f}"
    return f"[{colour}]{text}[/{colour}]" if colour else text
