"""How much faster is a pruned network, and does a latency target hold?

    python benchmarks/deploy.py                          # all that is not measured yet
    python benchmarks/deploy.py --only vgg16             # networks whose name contains this
    python benchmarks/deploy.py --table                  # only write docs/benchmarks.md
    python benchmarks/deploy.py --quick --results FILE   # narrow networks: a quick check

Two kinds of rows are appended to benchmarks/results/deploy.jsonl:
- speed-up: original, pruned (half of the filters) and hand-written network, alternating in ONNX
  Runtime at batch 1 and 64. `reached` is the speed-up of the pruned network divided by that of the
  hand-written network of the same widths; it should be at least 0.85.
- target: `to_latency` chooses a plan that removes a share of the latency. `miss` is the relative
  error of the remaining latency, the median of three more measurements, each in new sessions; it
  should be at most 0.05.
Rows measured on a busy machine have a `doubt` and are measured again by the next run.
ResNet-50 is torchvision's: use the environment of `make zoo` (.venv-zoo/bin/python).
Weights are random, because only widths matter for speed; γ is random, so that selections differ.
"""

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import dafp
import networks
from dafp.latency import Row, bench, to_latency
from dafp.latency.layer_table import machine
from dafp.models import build
from docpage import fill
from plain import same_widths
from result_files import FOLDER, append_rows, read_rows

SHIM = networks.shim_torchvision()
RESULTS = FOLDER / "deploy.jsonl"
WANTED = 0.85


@dataclass(frozen=True)
class Case:
    """One network and how it is run."""

    net: str
    size: int  # of the image
    batches: tuple[int, ...]
    asked: float  # share of the latency to remove; smaller where a residual stream stays whole


CASES = (
    Case("vgg16", 32, (1, 64), 0.5),
    Case("preresnet56", 32, (1, 64), 0.3),
    Case("torchvision:resnet50", 224, (1,), 0.4),
    Case("preresnet50-imagenet", 224, (1,), 0.4),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--quick", action="store_true", help="narrow networks, short runs")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only write docs/benchmarks.md")
    options = parser.parse_args()
    if options.table:
        write_tables(read_rows(options.results))
        return
    torch.set_num_threads(1)
    known = read_rows(options.results)
    done = {(r["kind"], r["net"], r["batch"]) for r in known if not r.get("doubt")}
    for case in CASES:
        if options.only not in case.net:
            continue
        for record in rows(case, options.quick, done):
            append_rows(options.results, record)
            print(json.dumps(record), flush=True)


def rows(case: Case, quick: bool, done: set[tuple[str, str, int]]) -> Iterator[dict[str, Any]]:
    """Measure what is missing for one network."""
    try:
        model, example = made(case, quick)
    except dafp.DafpError as error:
        print(f"{case.net} is skipped: {error}")
        return
    seconds = 0.2 if quick else 5.0
    about = {
        "net": case.net,
        "threads": 1,
        "machine": machine(),
        "python": platform.python_version(),
    }
    for batch in case.batches:
        if ("speed-up", case.net, batch) not in done:
            yield {
                "kind": "speed-up",
                **about,
                "batch": batch,
                **speedup(model, example, batch, seconds),
            }
        if ("target", case.net, batch) not in done:
            yield {
                "kind": "target",
                **about,
                "batch": batch,
                **target(model, example, batch, seconds, case.asked),
            }


def made(case: Case, quick: bool) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    ours = not case.net.startswith("torchvision:")
    model = build(case.net, width=0.25 if quick and ours else 1.0).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.3, 1.7)
            nn.init.normal_(module.bias, std=0.3)
    return model, torch.randn(1, 3, case.size, case.size)


def speedup(model: nn.Module, example: Tensor, batch: int, seconds: float) -> dict[str, Any]:
    """Remove half of the filters of every layer; measure all three networks alternately."""
    graph = dafp.trace(model, example)
    plan = dafp.selection.uniform(dafp.criteria.dependency_aware(model, graph), 0.5)
    small = dafp.prune(model, graph, plan)
    nets = {"original": model, "pruned": small, "hand-written": same_widths(small).eval()}
    found = {
        row.model: row
        for row in bench(nets, example, runtimes=["onnx"], batches=[batch], seconds=seconds)
    }
    pruned, plain = found["pruned"].speedup.value, found["hand-written"].speedup.value
    return {
        "reached": round(pruned / plain, 4), "good": pruned / plain >= WANTED,
        "doubt": next((row.doubt for row in found.values() if row.doubt), ""),
        "rows": {name: _as_record(row) for name, row in found.items()},
    }  # fmt: skip


def target(
    model: nn.Module, example: Tensor, batch: int, seconds: float, asked: float
) -> dict[str, Any]:
    """Choose a plan for a latency target, and measure the pruned network again."""
    graph = dafp.trace(model, example)
    scores = dafp.criteria.dependency_aware(model, graph)
    start = time.perf_counter()
    try:
        done = to_latency(
            model, graph, scores, example, asked, runtime="onnx", batch=batch,
            seconds=min(seconds, 2.0), rule=dafp.selection.uniform,
        )  # fmt: skip
    except dafp.errors.TargetError as error:
        return {"asked": asked, "good": False, "error": str(error)}
    took = time.perf_counter() - start
    nets = {"original": model, "pruned": dafp.prune(model, graph, done.plan)}
    again = [
        list(bench(nets, example, runtimes=["onnx"], batches=[batch], seconds=seconds))
        for _ in range(3)
    ]
    each = [1 / pruned.speedup.value for _, pruned in again]
    left = statistics.median(each)
    doubts = [row.doubt for rows in again for row in rows if row.doubt]
    return {
        "asked": asked, "removed_when_chosen": round(done.removed, 4),
        "removed_once_more": round(1 - left, 4), "miss": round(abs(left / (1 - asked) - 1), 4),
        "each_removed": [round(1 - one, 4) for one in each],
        "good": abs(left / (1 - asked) - 1) <= 0.05, "round_to": done.round_to,
        "attempts": len(done.attempts), "seconds_to_choose": round(took, 1),
        "points_measured": done.measured, "doubt": doubts[0] if doubts else "",
    }  # fmt: skip


def write_tables(records: list[dict[str, Any]]) -> None:
    """Write the latest row of each kind that has no doubt."""
    last = {(r["kind"], r["net"], r["batch"]): r for r in records if not r.get("doubt")}
    order = [case.net for case in CASES]
    ordered = sorted(last.items(), key=lambda one: (order.index(one[0][1]), one[0][2]))
    speed = [
        "",
        "| network | batch | original | pruned | hand-written | by MACs | speed-up "
        "| of hand-written | reached |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    targets = [
        "",
        "| network | batch | target | removed | error | models measured | seconds |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for (kind, net, batch), found in ordered:
        if kind == "speed-up":
            times = [found["rows"][n] for n in ("original", "pruned", "hand-written")]
            cells = [f"{one['ms']:.3g} ms" for one in times]
            cells += [f"{times[1]['ideal']:.2f}×"]
            cells += [f"{one['speedup']:.2f}×" for one in times[1:]] + [f"{found['reached']:.0%}"]
            speed.append(f"| {net} | {batch} | {' | '.join(cells)} |")
        elif "error" in found:
            targets.append(f"| {net} | {batch} | {found['asked']:.0%} | {found['error']} | | | |")
        else:
            targets.append(
                f"| {net} | {batch} | {found['asked']:.0%} | {found['removed_once_more']:.1%} "
                f"| {found['miss']:.1%} | {found['attempts']} | {found['seconds_to_choose']} |"
            )
    fill("benchmarks.md", "speed", [*speed, ""])
    fill("benchmarks.md", "latency target", [*targets, ""])


def _as_record(row: Row) -> dict[str, Any]:
    return {
        "ms": round(row.timing.median * 1e3, 4),
        "quartiles_ms": [round(q * 1e3, 4) for q in row.timing.quartiles],
        "speedup": round(row.speedup.value, 4),
        "speedup_95": [round(row.speedup.low, 4), round(row.speedup.high, 4)],
        "ideal": round(row.ideal or 0, 4), "peak_mb": round((row.memory or 0) / 1e6, 1),
        "doubt": row.doubt,
    }  # fmt: skip


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
