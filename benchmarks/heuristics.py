"""Which constants of step="auto" matter? Each halved, doubled and, where that means something, off.

    python benchmarks/heuristics.py          # resumable, about 20 minutes of one core
    python benchmarks/heuristics.py --table  # only write docs/sparsity.md

Tiny networks on the digits at 8×8 (`tiny.py`), seeds 0 to 2. Each training run is one row of
benchmarks/results/heuristics.jsonl.
"""

import argparse
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from dafp.sparse_training import automatic_control, schedule, training
from dafp.storage.revision import code_revision
from docpage import fill
from result_files import FOLDER, append_rows, read_rows
from tiny import Training, train

RESULTS = FOLDER / "heuristics.jsonl"
SOURCE = Path(__file__).parent.parent / "src" / "dafp"
SEEDS = (0, 1, 2)
SETTINGS = {
    "plain, 50 %": Training("plain", target=0.5, epochs=5),
    "plain, 80 %": Training("plain", target=0.8, epochs=5),
    "preactivation, 70 %": Training("preactivation", target=0.7, epochs=5),
}


@dataclass(frozen=True)
class Heuristic:
    """A constant of the automatic control: where it is, and the values to try instead."""

    module: ModuleType
    name: str
    meaning: str
    values: tuple[float, ...]


HEURISTICS = (
    Heuristic(schedule, "START", "nothing is due before this share of the steps", (0.05, 0.2)),
    Heuristic(schedule, "ARRIVAL", "the target is due at this share", (0.25, 1.0)),
    Heuristic(schedule, "REST", "β of dead channels is held from here on", (0.425, 1.0)),
    Heuristic(schedule, "STRETCH", "how far ahead channels are penalised", (0.05, 0.2)),
    Heuristic(training, "CONTROLS", "updates of λ per epoch", (2, 8)),
    Heuristic(automatic_control, "CHOSEN_LAST", "channels that are chosen last", (0, 4, 16)),
    Heuristic(automatic_control, "CHOSEN_LAST_SHARE", "but at most this share", (0.125, 0.5)),
    Heuristic(automatic_control, "SELECTION_FACTOR", "cost of selections", (0.0, 0.05, 0.2)),
    Heuristic(automatic_control, "FASTER", "factor on λ while behind", (1.0, 1.125, 1.5)),
)
RANK_MATCHING = "rank_matched"  # off: every channel keeps its own importance


@dataclass(frozen=True)
class Case:
    """One training run with one constant changed ("": none)."""

    setting: str
    constant: str = ""
    value: float = 0.0
    seed: int = 0


def cases() -> list[Case]:
    """All runs: the control as it is first, then every change with seed 0, then other seeds."""
    found = [Case(setting, seed=seed) for setting in SETTINGS for seed in SEEDS]
    for seed in SEEDS:
        for setting in SETTINGS:
            changes = [(h.name, float(value)) for h in HEURISTICS for value in h.values]
            changes.append((RANK_MATCHING, 0.0))
            found += [Case(setting, name, value, seed) for name, value in changes]
    return found


@contextmanager
def changed(case: Case) -> Iterator[None]:
    """Set the constant of a case within a `with` block."""
    if not case.constant:
        yield
        return
    module: ModuleType = automatic_control
    value: float | int | Callable[..., Any] = _unmatched
    for heuristic in HEURISTICS:
        if heuristic.name == case.constant:
            module = heuristic.module
            value = int(case.value) if isinstance(heuristic.values[0], int) else case.value
    before = getattr(module, case.constant)
    setattr(module, case.constant, value)
    try:
        yield
    finally:
        setattr(module, case.constant, before)


def _unmatched(order: Tensor, importance: Tensor) -> Tensor:
    """Every channel keeps its own importance."""
    return importance


def measure(case: Case) -> dict[str, Any]:
    setting = SETTINGS[case.setting]
    start = time.process_time()
    with changed(case):
        row = train(Training(**(asdict(setting) | {"seed": case.seed})))
    return row | {
        "cpu_s": round(time.process_time() - start, 1),
        "revision": code_revision(SOURCE, ""),
    }


def table() -> list[str]:
    """Mean differences to the control as it is, by setting and over all runs."""
    rows = {Case(**row["case"]): row for row in read_rows(RESULTS)}
    heads = " | ".join(f"{name}: accuracy" for name in SETTINGS)
    lines = [
        f"| constant | value | {heads} | all: accuracy | standard error | largest miss of r |",
        "|---|--:|" + "--:|" * (len(SETTINGS) + 3),
    ]
    for kind in dict.fromkeys((case.constant, case.value) for case in cases()):
        mine = {case: row for case, row in rows.items() if (case.constant, case.value) == kind}
        if mine:
            lines.append(_line(*kind, mine, rows))
    return lines


def _line(
    constant: str, value: float, mine: dict[Case, dict[str, Any]], rows: dict[Case, dict[str, Any]]
) -> str:
    by_setting: dict[str, list[float]] = {setting: [] for setting in SETTINGS}
    misses = []
    for case, row in mine.items():
        misses.append(abs(row["sparsity"] - SETTINGS[case.setting].target))
        whole = rows.get(Case(case.setting, seed=case.seed)) if constant else None
        by_setting[case.setting].append(quality(row) - (quality(whole) if whole else 0.0))
    found = [one for each in by_setting.values() for one in each]
    form = "+.2f" if constant else ".2f"
    cells = [f"{fmean(each):{form}}" if each else "" for each in (*by_setting.values(), found)]
    error = stdev(found) / len(found) ** 0.5 if constant and len(found) > 1 else 0.0
    shown = "off" if constant == RANK_MATCHING else f"{value:g}" if constant else ""
    cells += [f"{error:.2f}" if error else "", f"{max(misses):.3f}"]
    return f"| {constant or 'as it is'} | {shown} | {' | '.join(cells)} |"


def quality(row: dict[str, Any]) -> float:
    """Accuracy in percent: the pruned network and the last three epochs, half each."""
    return 50 * (row["pruned_recalibrated"] + row["accuracy"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only write docs/sparsity.md")
    parser.add_argument("--dry-run", action="store_true", help="only print how many are left")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("dafp").setLevel(logging.ERROR)  # five epochs are few on purpose
    known = {Case(**row["case"]) for row in read_rows(RESULTS)}
    left = [case for case in cases() if case not in known]
    if options.dry_run:
        print(f"{len(left)} of {len(cases())} runs are left")
        return
    for case in [] if options.table else left:
        row = measure(case)
        append_rows(RESULTS, {"case": asdict(case), **row})
        print(json.dumps(asdict(case)), json.dumps(row), flush=True)
    fill("sparsity.md", "heuristics", ["", *table(), ""])


if __name__ == "__main__":
    main()
