"""Outliers of Network Slimming: the paper drops such a run and repeats it with another seed."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ..sweeps import Sweep
from ..sweeps.statistics import Outcome, outcome, spread
from ..training.config import Config
from .tables import Item

METHOD = "slm"
MARGIN = 0.1  # a run that ends this far below the mean of its row is an outlier


@dataclass(frozen=True)
class Repeat:
    """The seeds of one configuration: those that count, and those of dropped runs."""

    seeds: tuple[int, ...]
    dropped: tuple[int, ...] = ()

    def __str__(self) -> str:
        seeds = ", ".join(map(str, self.dropped))
        return f"outliers dropped and repeated: seed {seeds}" if self.dropped else ""


Repeats = Mapping[Config, Repeat]  # by the configuration of seed 0; others have seeds 0, 1, …


def repeat_outliers(
    item: Item, runs: int, done: Sweep, run: Callable[[list[Config]], Sweep]
) -> dict[Config, Repeat]:
    """Run further seeds for the outliers of slm, and add their results to `done`.

    At most as many seeds are added as there were runs. Where every run collapsed, none is repeated:
    that is the result (N/A in the paper).
    """
    configs = dict.fromkeys(
        figure.config
        for row in item.rows
        for figure in row.figures
        if figure.config.method == METHOD
    )
    tried = dict.fromkeys(configs, runs)
    while True:
        found, todo = {}, []
        for config, count in tried.items():
            seeds = range(count)
            records = (done.of(dataclasses.replace(config, seed=seed)) for seed in seeds)
            gone = outliers([outcome(record) for record in records if record is not None])
            found[config] = Repeat(tuple(seed for seed in seeds if seed not in gone), gone)
            more = min(runs - len(found[config].seeds), 2 * runs - count)
            todo += [dataclasses.replace(config, seed=count + n) for n in range(more)]
            tried[config] = count + max(0, more)
        if not todo:
            return found
        new = run(todo)
        done.records.update(new.records)
        done.failures.update(new.failures)


def outliers(outcomes: Sequence[Outcome]) -> tuple[int, ...]:
    """The seeds of collapsed runs, and of those that end 10 points below the mean of the others."""
    mean = spread(one.final for one in outcomes)
    if mean is None:
        return ()  # all collapsed
    return tuple(
        one.seed for one in outcomes if one.final is None or one.final < mean.mean - MARGIN
    )
