"""Compare methods: methods × ratios × seeds on one network and data set, as a table and a page."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import TrainingError
from ..methods.schedules import epochs_of, own_schedule
from ..report import Axis, Cell, Section, Series, line, page, scatter
from ..report.page import columns, details, figure, paragraph, table, verbatim
from ..training.config import Config
from . import Sweep
from .statistics import Outcome, Spread, collapse, outcome, shown, spread

HEAD = (
    "method",
    "ratio",
    "baseline",
    "before fine-tuning",
    "accuracy",
    "n",
    "MACs left",
    "parameters left",
    "filters removed",
    "epochs",
)
NOTE = (
    "Accuracy on the test images after the last epoch, in percent: mean ± sample standard "
    "deviation (n − 1) of the n runs that did not collapse. N/A: every run collapsed, with the "
    "layer of which nothing was left. No run was repeated or left out. Epochs: of every training "
    "that led to its weights. The learning rate of sparse training is constant, but for slm, "
    "slm+da and slm+da+local, where it falls at the milestones of fine-tuning, and sfp, asfp and "
    "fpgm, which have no fine-tuning and train by its schedule for the epochs of both."
)


@dataclass(frozen=True)
class Entry:
    """One line of the table: a method at a ratio."""

    method: str
    ratio: float
    outcomes: tuple[Outcome, ...]  # of the seeds that are finished
    epochs: str = ""  # of the training stages that its weights went through

    def spread(self, of: Callable[[Outcome], float | None]) -> Spread | None:
        return spread(of(one) for one in self.outcomes)

    @property
    def final(self) -> Spread | None:
        return self.spread(lambda one: one.final)


def grid(
    base: Config, methods: Sequence[str], ratios: Sequence[float], seeds: Sequence[int]
) -> list[Config]:
    """The configurations of a comparison, in the order of its table.

    `sparse` depends on the method, as in the original papers: see `methods.schedules`.
    """
    for name, values in (("methods", methods), ("ratios", ratios), ("seeds", seeds)):
        if not values:
            raise TrainingError(f"a comparison needs {name}; give at least one")
        if len(set(values)) < len(values):
            raise TrainingError(f"{name} {', '.join(map(str, values))}: each only once")
    return [
        own_schedule(dataclasses.replace(base, method=method, target=ratio, seed=seed))
        for method, ratio, seed in itertools.product(methods, ratios, seeds)
    ]


def entries(configs: Sequence[Config], done: Sweep) -> list[Entry]:
    """The lines of the table, one per method and ratio, with the outcomes of the finished seeds."""
    lines: dict[tuple[str, float, str], list[Outcome]] = {}
    for config in configs:
        found = lines.setdefault((config.method, config.target, epochs_of(config)), [])
        record = done.of(config)
        if record is not None:
            found.append(outcome(record))
    return [
        Entry(method, ratio, tuple(found), epochs)
        for (method, ratio, epochs), found in lines.items()
    ]


def cells(entry: Entry) -> list[str | Cell]:
    """The cells of one line of the table, as text."""
    if entry.outcomes and entry.final is None:
        accuracy = Cell("N/A", collapse(entry.outcomes))
    else:
        accuracy = Cell(shown(entry.final), collapse(entry.outcomes))
    return [
        entry.method,
        f"{entry.ratio:g}",
        shown(entry.spread(lambda o: o.baseline)),
        shown(entry.spread(lambda o: o.pruned)),
        accuracy,
        str(entry.final.n if entry.final else 0),
        shown(entry.spread(lambda o: o.macs)),
        shown(entry.spread(lambda o: o.params)),
        shown(entry.spread(lambda o: o.removed)),
        entry.epochs,
    ]


def to_json(entry: Entry) -> dict[str, Any]:
    """One line of the table for --json; numbers are shares, not percent."""

    def value(found: Spread | None) -> dict[str, Any] | None:
        return None if found is None else vars(found)

    return {
        "method": entry.method,
        "ratio": entry.ratio,
        "epochs": entry.epochs,
        "accuracy": value(entry.final),
        "baseline": value(entry.spread(lambda o: o.baseline)),
        "before_finetune": value(entry.spread(lambda o: o.pruned)),
        "macs": value(entry.spread(lambda o: o.macs)),
        "params": value(entry.spread(lambda o: o.params)),
        "removed": value(entry.spread(lambda o: o.removed)),
        "collapsed": {str(o.seed): o.collapsed for o in entry.outcomes if o.collapsed},
        "runs": [vars(o) for o in entry.outcomes],
    }


def comparison_page(
    base: Config, lines: Sequence[Entry], done: Sweep, settings: str, command: str = ""
) -> str:
    """The HTML page: table, accuracy against ratio and against multiply-adds, settings."""
    sections = [
        Section(
            "",
            [
                table("Methods", HEAD, [cells(one) for one in lines], left=1),
                paragraph(NOTE, "hint"),
                *failures(done),
            ],
        ),
        Section(
            "Curves",
            [
                columns(
                    figure(by_ratio(lines), "Accuracy against the share removed"),
                    figure(by_macs(lines), "Accuracy against multiply-adds left"),
                )
            ],
        ),
        Section(
            "How it was made",
            [
                paragraph(hardware(done)),
                details("Settings (sparse: see the table)", verbatim(settings)),
                *([verbatim(command)] if command else []),
            ],
        ),
    ]
    title = f"{base.model} on {base.data}: {len({one.method for one in lines})} methods compared"
    return page(title, sections, f"width ×{base.width:g}", "Written by dafp compare.")


def by_ratio(lines: Sequence[Entry]) -> Any:
    """Chart of accuracy against the share to remove, with the deviation over runs."""
    series = [
        Series(
            method,
            [(one.ratio, one.final.mean if one.final else None) for one in mine],
            errors=[one.final.std if one.final else None for one in mine],
        )
        for method, mine in _by_method(lines)
    ]
    return line(
        "Accuracy of each method against the share removed",
        series,
        x=Axis("share asked to be removed", "percent"),
        y=Axis("accuracy", "percent"),
        zoom=False,
    )


def by_macs(lines: Sequence[Entry]) -> Any:
    """Chart of accuracy against the multiply-adds left."""
    series = []
    for method, mine in _by_method(lines):
        points, errors = [], []
        for one in mine:
            macs = one.spread(lambda o: o.macs)
            if one.final is not None and macs is not None:
                points.append((macs.mean, one.final.mean))
                errors.append(one.final.std)
        series.append(Series(method, points, errors=errors))
    return scatter(
        "Accuracy of each method against multiply-adds left",
        series,
        x=Axis("multiply-adds left", "percent"),
        y=Axis("accuracy", "percent"),
        joined=True,
    )


def failures(done: Sweep) -> list[Any]:
    """Failed jobs, as notices on the page."""
    return [paragraph(f"Failed: {text}", "notice") for text in done.failures.values()]


def hardware(done: Sweep) -> str:
    """The machines and versions that computed the records, as text."""
    found = {
        f"{r['result']['machine']['cpu']} ({r['result']['machine']['threads']} threads), "
        f"torch {r['result']['versions']['torch']}, dafp {r['dafp']}"
        for r in done.records.values()
    }
    return f"{len(done.records)} jobs, computed on " + ("; ".join(sorted(found)) or "nothing yet")


def _by_method(lines: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    names = dict.fromkeys(one.method for one in lines)
    return [
        (name, sorted((one for one in lines if one.method == name), key=lambda one: one.ratio))
        for name in names
    ]
