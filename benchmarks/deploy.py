"""Half of the filters gone: how much quicker, against a hand-written network of the same widths?

    python benchmarks/deploy.py                          # all that is not in the results file yet
    python benchmarks/deploy.py --only vgg16             # networks whose name contains this
    python benchmarks/deploy.py --table                  # the tables of docs/benchmarks.md
    python benchmarks/deploy.py --quick --results FILE   # narrow networks: to see that it works

Two kinds of rows, each done once and appended to the results file:
- speed-up: original, pruned and hand-written network by turns in ONNX Runtime, batch 1 and 64;
  `reached` is the pruned network's speed-up by the hand-written one's, at least 0.85 is wanted.
- target: `to_latency` is asked for a share of the time; `miss` is how far what is left is from it,
  at most 0.05 is wanted, the median of three measurements more, each in new sessions.
Rows that the machine was too busy for carry a `doubt` and are measured again by the next run.
The ResNet-50 is torchvision's: the environment of `make zoo` has it (.venv-zoo/bin/python).
Weights are random (only widths matter for speed), γ is random so that selections differ.
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

SHIM = networks.shim_torchvision()
RESULTS = Path(__file__).parent / "results" / "deploy.jsonl"
WANTED = 0.85


@dataclass(frozen=True)
class Case:
    """One network and how it is run."""

    net: str
    size: int  # of the image
    batches: tuple[int, ...]
    asked: float  # share of the latency to remove; a residual stream that stays whole costs time


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
        write_tables(read(options.results))
        return
    torch.set_num_threads(1)
    done = {(r["kind"], r["net"], r["batch"]) for r in read(options.results) if not r.get("doubt")}
    for case in CASES:
        if options.only not in case.net:
            continue
        for record in rows(case, options.quick, done):
            with open(options.results, "a") as file:
                file.write(json.dumps(record) + "\n")
            print(json.dumps(record), flush=True)


def rows(case: Case, quick: bool, done: set[tuple[str, str, int]]) -> Iterator[dict[str, Any]]:
    """What is not done yet for one network."""
    try:
        model, example = made(case, quick)
    except dafp.DafpError as error:
        print(f"{case.net} is left out: {error}")
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
    """Half of the filters of every layer, then all three by turns."""
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
        "rows": {name: _told(row) for name, row in found.items()},
    }  # fmt: skip


def target(
    model: nn.Module, example: Tensor, batch: int, seconds: float, asked: float
) -> dict[str, Any]:
    """Ask for a share of the time, and measure the answer once more."""
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
    """The last row of each kind that the machine was quiet for."""
    last = {(r["kind"], r["net"], r["batch"]): r for r in records if not r.get("doubt")}
    order = [case.net for case in CASES]
    ordered = sorted(last.items(), key=lambda one: (order.index(one[0][1]), one[0][2]))
    speed = [
        "",
        "| network | batch | original | pruned | hand-written | by MACs | speed-up "
        "| of hand-written | reached |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    aims = [
        "",
        "| network | batch | asked to remove | removed | off by | models measured | seconds |",
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
            aims.append(f"| {net} | {batch} | {found['asked']:.0%} | {found['error']} | | | |")
        else:
            aims.append(
                f"| {net} | {batch} | {found['asked']:.0%} | {found['removed_once_more']:.1%} "
                f"| {found['miss']:.1%} | {found['attempts']} | {found['seconds_to_choose']} |"
            )
    fill("benchmarks.md", "speed", [*speed, ""])
    fill("benchmarks.md", "latency target", [*aims, ""])


def _told(row: Row) -> dict[str, Any]:
    return {
        "ms": round(row.timing.median * 1e3, 4),
        "quartiles_ms": [round(q * 1e3, 4) for q in row.timing.quartiles],
        "speedup": round(row.speedup.value, 4),
        "speedup_95": [round(row.speedup.low, 4), round(row.speedup.high, 4)],
        "ideal": round(row.ideal or 0, 4), "peak_mb": round((row.memory or 0) / 1e6, 1),
        "doubt": row.doubt,
    }  # fmt: skip


def read(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
