"""The numbers of a table from the results of jobs: mean and standard deviation."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

from ..report import formatting
from .results_store import ResultRow


@dataclass(frozen=True)
class Outcome:
    """Numbers of one job; accuracies are shares, None where the run has no such stage."""

    seed: int
    baseline: float | None
    sparse: float | None  # after sparse training, before pruning
    pruned: float | None  # after pruning, before fine-tuning
    final: float | None  # None if it collapsed
    removed: float | None  # share of the filters that can be pruned
    macs: float | None  # share that is left
    params: float | None
    fewest: int  # channels of the narrowest layer
    params_left: float | None = None  # parameters of the last network
    macs_left: float | None = None  # its multiply-adds
    params_whole: float | None = None  # of the first network
    macs_whole: float | None = None
    found_p: float | None = None  # threshold at which it was pruned
    collapsed: str = ""  # the layer that lost all its filters
    collapsed_accuracy: float | None = None


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n − 1) of some runs."""

    n: int
    mean: float
    std: float | None = None  # None for a single run

    def percent(self, digits: int = 2) -> str:
        """Mean and deviation in percent: "93.20 ± 0.15", or "93.20" for a single run."""
        text = f"{self.mean * 100:.{digits}f}"
        return text if self.std is None else f"{text} ± {self.std * 100:.{digits}f}"


def outcome(record: ResultRow) -> Outcome:
    """The numbers of one record."""
    result = record["result"]
    stages = {stage["stage"]: stage for stage in result["stages"]}
    accuracy = {name: stage["accuracy"] for name, stage in stages.items()}
    first, last = result["stages"][0], result["stages"][-1]
    collapsed = result.get("collapsed", "")
    return Outcome(
        seed=record["config"]["seed"],
        baseline=accuracy.get("baseline"),
        sparse=accuracy.get("sparse"),
        pruned=result.get("collapsed_accuracy") if collapsed else accuracy.get("pruned"),
        final=None if collapsed else last["accuracy"],
        removed=result["sparsity"]["removed"],
        macs=None if collapsed else _share(last["macs"], first["macs"]),
        params=None if collapsed else _share(last["params"], first["params"]),
        fewest=0 if collapsed else min((row[2] for row in record["kept"]), default=0),
        params_left=None if collapsed else last["params"],
        macs_left=None if collapsed else last["macs"],
        params_whole=first["params"],
        macs_whole=first["macs"],
        found_p=result["sparsity"].get("found_p"),
        collapsed=collapsed,
        collapsed_accuracy=result.get("collapsed_accuracy"),
    )


def _share(after: int | None, before: int | None) -> float | None:
    return None if after is None or not before else after / before


def spread(values: Iterable[float | None]) -> Spread | None:
    """Mean and deviation of the values that are not None; None if there are no such values."""
    known = [value for value in values if value is not None]
    if not known:
        return None
    std = statistics.stdev(known) if len(known) > 1 else None
    return Spread(len(known), statistics.fmean(known), std)


def shown(found: Spread | None, gap: str = formatting.GAP) -> str:
    """A spread in percent, or a dash where there is none."""
    return gap if found is None else found.percent()


def collapse(outcomes: Iterable[Outcome]) -> str:
    """How many runs collapsed, and in which layers: "2 of 3 collapsed: features.40"; else empty."""
    every = list(outcomes)
    layers = [one.collapsed for one in every if one.collapsed]
    if not layers:
        return ""
    return f"{len(layers)} of {len(every)} collapsed: {', '.join(dict.fromkeys(layers))}"
