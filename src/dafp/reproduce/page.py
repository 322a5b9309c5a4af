"""The page of a reproduction: every number of the paper, ours, n and the difference."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..report import Axis, Cell, Section, Series, bar, line, page
from ..report.formatting import GAP
from ..report.page import Html, columns, figure, paragraph, table, verbatim
from ..sweeps import Sweep
from ..sweeps.comparison import Entry, by_macs, by_ratio, failures, hardware
from ..sweeps.results_store import ResultRow
from ..sweeps.statistics import Outcome, Spread, collapse, outcome, shown, spread
from ..training.config import Config
from .outliers import Repeat, Repeats
from .profiles import PROFILES
from .tables import PLAIN, Figure, Item, TableRow

HEAD = ("row", "figure", "paper", "ours", "n", "difference", "ours is")

NO_REPEATS: Repeats = {}
_VALUES: dict[str, Callable[[Outcome], float | None]] = {
    "baseline": lambda o: o.baseline,
    "sparse": lambda o: o.sparse,
    "pruned": lambda o: o.pruned,
    "final": lambda o: o.final,
    "final or collapsed": lambda o: o.collapsed_accuracy if o.collapsed else o.final,
    "fewest": lambda o: float(o.fewest),
    "found p": lambda o: o.found_p,
    "params": lambda o: o.params_left,
    "macs": lambda o: o.macs_left,
    "params of baseline": lambda o: o.params_whole,
    "macs of baseline": lambda o: o.macs_whole,
}


@dataclass(frozen=True)
class Answer:
    """A number of the paper (`figure`), and ours."""

    row: TableRow
    figure: Figure
    ours: Spread | None
    collapsed: str  # from `collapse`
    finished: int
    repeat: Repeat | None = None  # where outliers are repeated

    @property
    def text(self) -> str:
        """Our number as text."""
        if self.ours is None:
            return "N/A" if self.finished else GAP
        if self.figure.stage in PLAIN:
            factor, form = PLAIN[self.figure.stage]
            return f"{self.ours.mean * factor:{form}}"
        return shown(self.ours)

    @property
    def difference(self) -> float | None:
        """Our number minus that of the paper, as a share or a plain number."""
        if self.ours is None or self.figure.mean is None:
            return None
        factor = PLAIN.get(self.figure.stage, (1.0, ""))[0]
        return self.ours.mean * factor - self.figure.mean


def answers(item: Item, runs: int, done: Sweep, repeats: Repeats = NO_REPEATS) -> list[Answer]:
    """Every figure of every row, with the numbers of the finished jobs."""
    found = []
    for row in item.rows:
        for one in row.figures:
            repeat = repeats.get(one.config)
            seeds = range(runs) if repeat is None else repeat.seeds
            outcomes = [outcome(record) for record in _records(one.config, seeds, done)]
            ours = spread(_VALUES[one.stage](o) for o in outcomes)
            found.append(Answer(row, one, ours, collapse(outcomes), len(outcomes), repeat))
    return found


def to_json(answer: Answer) -> dict[str, Any]:
    """One answer for --json; numbers are shares (or counts), not percent."""
    return {
        "row": answer.row.name,
        "figure": answer.figure.name,
        "paper": answer.figure.mean,
        "printed": answer.figure.printed,
        "ours": answer.ours and vars(answer.ours),
        "difference": answer.difference,
        "collapsed": answer.collapsed,
        "finished": answer.finished,
        "dropped_seeds": list(answer.repeat.dropped) if answer.repeat else [],
        "note": answer.row.note,
    }


def reproduction_page(
    item: Item,
    profile: str,
    runs: int,
    done: Sweep,
    changes: Sequence[str] = (),
    command: str = "",
    repeats: Repeats = NO_REPEATS,
) -> str:
    """The whole page as text."""
    found = answers(item, runs, done, repeats)
    notes = list(dict.fromkeys(f"{one.row.name}: {one.row.note}" for one in found if one.row.note))
    top: list[Html] = [paragraph(f"Profile {profile}. {PROFILES[profile]}", "notice")]
    if changes:
        top.append(paragraph(f"Changed for this run: {', '.join(changes)}", "notice"))
    top += failures(done)
    top.append(table("The paper's figures and ours", HEAD, [cells(one) for one in found], left=2))
    top.append(
        paragraph(
            "Accuracy in percent, of the last epoch, mean ± sample standard deviation (n − 1) of n "
            "runs; differences in points. A collapsed run is named, and not part of the mean after "
            "fine-tuning; --repeat-outliers repeats such runs of slm, as the paper did. – : "
            "nothing printed, or not done yet.",
            "hint",
        )
    )
    sections = [Section("", top), *_charts(item, runs, done)]
    if item.note or notes:
        sections.append(Section("Notes", [paragraph(text) for text in (item.note, *notes) if text]))
    made = [paragraph(hardware(done)), *([verbatim(command)] if command else [])]
    sections.append(Section("How it was made", made))
    subtitle = f"{item.name}: profile {profile}, rows: {len(item.rows)}, runs of each: {runs}"
    return page(item.title, sections, subtitle, "Written by dafp reproduce.")


def cells(one: Answer) -> list[str | Cell]:
    """The cells of one line of the table, as text."""
    config = one.figure.config
    width = "" if config.width == 1 else f" ×{config.width:g}"
    n = one.ours.n if one.ours else 0
    return [
        one.row.name,
        one.figure.name.replace("_", " "),
        one.figure.printed or GAP,
        Cell(one.text, "; ".join(filter(None, (one.collapsed, str(one.repeat or ""))))),
        str(n),
        _signed(one),
        f"{config.model}{width}, {config.data}, {config.method} r={config.target:g}",
    ]


def _signed(one: Answer) -> str:
    if one.difference is None:
        return GAP
    text = f"{one.difference * (1 if one.figure.stage in PLAIN else 100):+.2f}"
    return text.replace("-", "−")


def _records(config: Config, seeds: Sequence[int], done: Sweep) -> list[ResultRow]:
    found = (done.of(dataclasses.replace(config, seed=seed)) for seed in seeds)
    return [record for record in found if record is not None]


def _charts(item: Item, runs: int, done: Sweep) -> list[Section]:
    if item.name == "sensitivity":
        lines = [
            Entry(c.method, c.target, tuple(map(outcome, _records(c, range(runs), done))))
            for c in dict.fromkeys(row.figures[0].config for row in item.rows)
        ]
        return [
            Section(
                "Curves",
                [
                    columns(
                        figure(by_ratio(lines), "Accuracy against the share removed"),
                        figure(by_macs(lines), "Accuracy against multiply-adds left"),
                    )
                ],
            )
        ]
    first = {
        config.method: records[0]
        for config in dict.fromkeys(row.figures[0].config for row in item.rows)
        if (records := _records(config, range(runs), done))
    }
    if not first:
        return []
    if item.name == "dynamics":
        return [Section("Over the epochs, first run", [columns(*_dynamics(first))])]
    if item.name == "architecture":
        return [Section("Filters left, first run", [_architecture(first)])]
    return []


_SCORED_BY = {"slm": "sparsity_bn_scale", "slm+da": "sparsity_dependency_aware"}


def _dynamics(first: dict[str, ResultRow]) -> list[Html]:
    drawn = []
    for stage, key, caption, wording in (
        ("sparse", "penalty", "λ", "number"),
        ("sparse", "sparsity", "P", "percent"),
        ("sparse", "val_accuracy", "Accuracy in sparse training", "percent"),
        ("finetune", "val_accuracy", "Accuracy in fine-tuning", "percent"),
    ):
        series = []
        for method, record in first.items():
            mine = _SCORED_BY.get(method, key) if key == "sparsity" else key
            values = record["curves"].get(stage, {}).get(mine, [])
            series.append(Series(method, list(enumerate(values, 1))))
        series = [one for one in series if one.points]
        chart = line(caption, series, x=Axis("epoch"), y=Axis(caption, wording), zoom=False)
        drawn.append(figure(chart, caption))
    return drawn


def _architecture(first: dict[str, ResultRow]) -> Html:
    longest = max((record["kept"] for record in first.values()), key=len)
    names = [row[0] for row in longest]
    sizes = {row[0]: row[1] for record in first.values() for row in record["kept"] if row[1]}
    series = [Series("before", [(None, sizes.get(name)) for name in names], "muted")]
    for method, record in first.items():
        left = {row[0]: row[2] for row in record["kept"]}
        series.append(Series(method, [(None, left.get(name)) for name in names]))
    return figure(bar("Filters left in every layer", names, series, y=Axis("filters")), "Filters")
