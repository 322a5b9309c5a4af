"""Progress of a training run: bars on a terminal, one line per epoch elsewhere."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bars
from rich.table import Table
from rich.text import Text

from ..report import formatting
from ..report.speed import latency_text, speed_note
from .printing import table_of

REFRESH_S = 0.1  # between two refreshes, steps are counted and not drawn


class TerminalProgress:
    """Progress of a run on stderr.

    `stage` starts a stage of `epochs` epochs with `steps` steps each; the first `done` epochs were
    finished by an earlier process. `step` counts one training step, `epoch` takes a line of
    metrics.jsonl.
    """

    def __init__(self, quiet: bool = False, console: Console | None = None) -> None:
        self.console = console or Console(stderr=True, quiet=quiet)
        if quiet:
            self.console.quiet = True
        self.bars = _Lines(
            TextColumn("{task.description:<10}", style="bold", markup=False),
            BarColumn(24),
            TextColumn("epoch {task.fields[epoch]}"),
            TextColumn("{task.fields[left]}", style="cyan"),
            console=self.console,
            refresh_per_second=8,
        )
        self.live = self.console.is_terminal and not self.console.quiet
        self.task: TaskID | None = None
        self.name, self.epochs, self.steps = "", 0, 0
        self.counted = self.before = 0  # finished steps, and those of an earlier process
        self.later = 0  # steps of the run after this stage
        self.began = self.drawn = 0.0
        self.row: Mapping[str, Any] = {}  # the latest numbers

    def __enter__(self) -> "TerminalProgress":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.bars.live.is_started:  # an error before the first stage leaves no empty line
            self._draw()
            self.bars.stop()

    def stage(self, name: str, epochs: int, steps: int, done: int = 0, later: int = 0) -> None:
        """Start a stage; `later` epochs of the run come after it."""
        self._draw()
        self.later = later * steps
        self.name, self.epochs, self.steps = name, epochs, steps
        self.counted = self.before = done * steps
        self.row = {}
        self.began = self.drawn = time.monotonic()
        if self.live:
            self.bars.start()
            self.task = self.bars.add_task(
                name, total=max(1, epochs * steps), completed=self.counted, **self._words()
            )
        elif done:
            self.console.print(f"{name}: continues after epoch {done} of {epochs}", highlight=False)

    def step(self, loss: float | None = None) -> None:
        """Count one training step; cheap enough to call at each step."""
        self.counted += 1
        if self.live and time.monotonic() - self.drawn > REFRESH_S:
            if loss is not None:
                self.row = {**self.row, "loss": loss}
            self._draw()

    def epoch(self, row: Mapping[str, Any]) -> None:
        """Show the numbers of a finished epoch."""
        at = row.get("epoch") or 0
        self.counted = max(self.counted, at * self.steps)
        self.row = row
        if self.live:
            self._draw()
            return
        took, left = row.get("epoch_s"), self._left()
        parts = [f"{self.name} {at}/{self.epochs}", numbers_of(row)]
        parts += [formatting.seconds(took)] if took is not None else []
        parts += [left] if left else []
        self.console.print("  ".join(part for part in parts if part), **_PLAIN)

    def say(self, text: str) -> None:
        """Print a line above the bars."""
        self.console.print(text, **_PLAIN)

    def _draw(self) -> None:
        self.drawn = time.monotonic()
        if self.live and self.task is not None:
            self.bars.line = numbers_of(self.row)
            self.bars.update(self.task, completed=self.counted, **self._words())

    def _words(self) -> dict[str, Any]:
        at = min(self.epochs, self.counted // max(1, self.steps) + 1)
        return {"epoch": f"{at}/{self.epochs}", "left": self._left()}

    def _left(self) -> str:
        """Time left in the run, estimated from the steps of this process in this stage."""
        fresh = self.counted - self.before
        rest = self.epochs * self.steps - self.counted + self.later
        if fresh <= 0 or rest <= 0:
            return ""
        return f"{formatting.seconds((time.monotonic() - self.began) / fresh * rest)} left"


class _Lines(Bars):
    """Bars with one line of numbers below them."""

    line = ""

    def get_renderables(self) -> Iterable[RenderableType]:
        yield from super().get_renderables()
        yield Text(self.line, style="dim", no_wrap=True, overflow="ellipsis")


_PLAIN: dict[str, Any] = {"highlight": False, "markup": False, "soft_wrap": True}


def numbers_of(row: Mapping[str, Any]) -> str:
    """λ, P, loss and accuracy of an epoch in one line, without those that were not measured.

    The accuracy is the one that every epoch has: on validation images, or if there are none, on
    training images. Test images are used in some epochs only.
    """
    parts = []
    if row.get("penalty") is not None:
        parts.append(f"λ {row['penalty']:.2e}")
    if row.get("sparsity") is not None:
        due = f" (target {formatting.percent(row['aim'])})" if row.get("aim") is not None else ""
        parts.append(f"P {formatting.percent(row['sparsity'])}{due}")
    if row.get("loss") is not None:
        parts.append(f"loss {row['loss']:.3f}")
    for kind in ("val", "train", "test"):
        if row.get(f"{kind}_accuracy") is not None:
            parts.append(f"{kind} accuracy {formatting.percent(row[f'{kind}_accuracy'])}")
            break
    return "  ".join(parts)


def summary_table(stages: Sequence[Mapping[str, Any]]) -> Table:
    """One row per stage (baseline, sparse, pruned, finetuned): accuracy, size, speed, changes."""
    columns = ["accuracy", "filters", "parameters", "MACs", "latency"]
    table = table_of("before and after", [""], columns)
    for stage in stages:
        table.add_row(
            escape(formatting.stage(str(stage.get("stage", "")))), *_cells(stage, stages[0])
        )
    return table


def _cells(stage: Mapping[str, Any], first: Mapping[str, Any]) -> list[str]:
    """Each number, with its change from the first row if they differ."""
    texts = (
        ("accuracy", lambda v: formatting.percent(v, 2), formatting.points),
        ("filters", formatting.count, formatting.change),
        ("params", formatting.short, formatting.change),
        ("macs", formatting.short, formatting.change),
    )
    cells = []
    for key, show, compare in texts:
        new, old = stage.get(key), first.get(key)
        change = "" if new == old else compare(new, old)
        more = f" [dim]{change}[/dim]" if change not in ("", formatting.GAP) else ""
        cells.append(show(new) + more)
    gain = speed_note(stage, first)
    return [*cells, latency_text(stage) + (f" [dim]{gain}[/dim]" if gain else "")]


@contextmanager
def step_progress(quiet: bool) -> Iterator[Callable[[str, int, int], None]]:
    """Context manager: bars on stderr for the steps of one command; called with (step, n, total).

    The bar of a step is finished when the next one begins.
    """
    console = Console(stderr=True, quiet=quiet)
    bars = Bars(
        TextColumn("{task.description:<12}", style="bold", markup=False), BarColumn(24),
        TextColumn("{task.completed:.0f}/{task.total:.0f}"), TimeElapsedColumn(),
        console=console, disable=quiet or not console.is_terminal,
    )  # fmt: skip
    tasks: dict[str, TaskID] = {}

    def show(step: str, number: int, total: int) -> None:
        if step not in tasks:
            for task in tasks.values():
                bars.update(task, completed=bars.tasks[task].total)
            tasks[step] = bars.add_task(step, total=total)
            if not console.is_terminal:
                console.print(f"{step} …", **_PLAIN)
        bars.update(tasks[step], completed=number, total=total)

    with bars:
        yield show
        for task in tasks.values():
            bars.update(task, completed=bars.tasks[task].total)
