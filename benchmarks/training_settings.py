"""Sparse training elsewhere: other norms, γ = 0, frozen BN, AdamW, accumulation, an average.

    python benchmarks/training_settings.py    # resumable, about 15 minutes of one core
    python benchmarks/arrival.py --table      # writes the table into docs/arrival.md

Tiny networks on the digits at 8×8 (`tiny.py`), half of the filters removed, seeds 0 to 2. Beside
each: the same loop without penalty, and without penalty at half of the width. Each training run is
one row of benchmarks/results/training_settings.jsonl.
"""

import argparse
import json
import logging
import time
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from dafp.storage.revision import code_revision
from result_files import FOLDER, append_rows, read_rows
from tiny import Training, train

RESULTS = FOLDER / "training_settings.jsonl"
SOURCE = Path(__file__).parent.parent / "src" / "dafp"
TARGET, EPOCHS, SEEDS = 0.5, 8, (0, 1, 2)
BASE = Training("plain", target=TARGET, epochs=EPOCHS)
SMALL = replace(BASE, width=0.25)
BLOCKS = replace(BASE, network="residual", width=0.5)
SETTINGS = {
    "BatchNorm, 8 to 16 channels": SMALL,
    "InstanceNorm, 8 to 16 channels": replace(SMALL, norm="instance"),
    "GroupNorm, 8 to 16 channels in groups of 4": replace(SMALL, norm="group"),
    "BatchNorm": BASE,
    "InstanceNorm": replace(BASE, norm="instance"),
    "GroupNorm, groups of 4": replace(BASE, norm="group"),
    "shortcuts": BLOCKS,
    "shortcuts, last γ of a block starts at 0": replace(BLOCKS, zero_scales=True),
    "the same, residual streams pruned too": replace(BLOCKS, zero_scales=True, residual="couple"),
    "BN statistics frozen": replace(BASE, frozen=True),
    "AdamW, warm-up and cosine": replace(BASE, optimizer="adamw"),
    "four backward passes per step": replace(BASE, accumulate=4),
    "exponential average of the weights": replace(BASE, average=True),
}


def cases() -> list[Training]:
    """Every setting with penalty, without it, and without it at half of the width."""
    found = []
    for seed in SEEDS:
        for setting in SETTINGS.values():
            mine = replace(setting, seed=seed)
            found += [mine, replace(mine, target=0.0), narrow(mine)]
    return list(dict.fromkeys(found))


def narrow(training: Training) -> Training:
    """The same loop without penalty at half of the width."""
    return replace(training, target=0.0, width=training.width / 2)


def rows() -> dict[Training, dict[str, Any]]:
    """The finished runs; of two rows of one run the last counts."""
    return {Training(**row["training"]): row for row in read_rows(RESULTS)}


def section() -> list[str]:
    """The lines of the table: mean over the seeds that are finished for all three."""
    known = rows()
    lines = [
        "| setting | plain | half of the width | sparse training | against plain "
        "| pruned | P at the end |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for name, setting in SETTINGS.items():
        each = [replace(setting, seed=seed) for seed in SEEDS]
        each = [
            one for one in each
            if all(c in known for c in (one, replace(one, target=0.0), narrow(one)))
        ]  # fmt: skip
        if not each:
            continue
        plain, half, sparse, pruned = (
            fmean(100 * known[training][key] for training in trainings)
            for trainings, key in (
                ([replace(one, target=0.0) for one in each], "accuracy"),
                ([narrow(one) for one in each], "accuracy"),
                (each, "accuracy"),
                (each, "pruned_recalibrated"),
            )
        )
        ends = ", ".join(f"{known[one]['sparsity']:.2f}" for one in each)
        lines.append(
            f"| {name} | {plain:.1f} | {half:.1f} | {sparse:.1f} | {sparse - plain:+.1f} "
            f"| {pruned:.1f} | {ends} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dry-run", action="store_true", help="only print how many are left")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("dafp").setLevel(logging.ERROR)
    known = rows()
    left = [case for case in cases() if case not in known]
    print(f"{len(left)} of {len(cases())} runs are left")
    for case in [] if options.dry_run else left:
        start = time.process_time()
        row = train(case)
        row["cpu_s"] = round(time.process_time() - start, 1)
        row["revision"] = code_revision(SOURCE, "")
        append_rows(RESULTS, {"training": asdict(case), **row})
        print(json.dumps(asdict(case)), json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
