"""Writes docs/zoo.md from the results of benchmarks/zoo.py."""

import platform
import statistics
from pathlib import Path
from typing import Any

import torch

import zoo_family_table
from result_files import FOLDER, read_rows

CLASSIFICATION = "classification"
PAGE = Path(__file__).parent.parent / "docs" / "zoo.md"
Record = dict[str, Any]
LARGE = 25e6  # bytes of parameters: in smaller networks, activations dominate the memory


def write(records: list[Record], family_of: dict[str, str]) -> None:
    """Write the page: a summary, then one row per network, by family."""
    others = zoo_family_table.lines(records, family_of)
    planned = sum(family == CLASSIFICATION for family in family_of.values())
    records = [r for r in records if family_of.get(r["net"], CLASSIFICATION) == CLASSIFICATION]
    seen = {r["net"] for r in records}
    large = {r["net"] for r in records if r["ratio"] is None}
    records = [r for r in records if r["ratio"] is not None]
    nets = list(dict.fromkeys(r["net"] for r in records))
    own = sum(name.startswith("dafp:") for name in nets)
    by = {(r["net"], r["tool"], r["ratio"]): r for r in records}
    lines = [
        "# Networks of torchvision, timm and others",
        "",
        f"Measured by `make zoo` with torch {torch.__version__.partition('+')[0]} on {platform.machine()}, one "
        "thread per job. Weights and BN statistics are random (seed 0). The same share of filters is removed from "
        'every layer by the L2 norm in both tools, with coupled residual streams (`residual="couple"`). *exact* '
        "means equal, within 1e-4, to the original with the weights that consume removed channels set to zero. "
        "Seconds are processor time; those of dafp include the verification of the result, which Torch-Pruning "
        "does not do.",
        "",
        "## Classification",
        "",
        f"{len(seen)} of {planned} networks are done: {len(nets) - own} of torchvision and timm and {own} of dafp are "
        f"measured, {len(large)} are skipped because they have more than 100 M parameters. The summary counts the "
        f"{len(nets) - own}. `make zoo` measures the networks that are missing.",
        "",
        *_summary(by, nets),
        "",
        *_time_by_depth(by),
        "",
        *zoo_family_table.before_after(read_rows(FOLDER / "before_after.jsonl")),
        "",
        *others,
        "",
        *_rows(by, nets),
        "",
    ]
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text("\n".join(lines))


def _summary(by: dict[Any, Record], nets: list[str]) -> list[str]:
    nets = [n for n in nets if not n.startswith("dafp:")]
    lines = ["| | dafp 30 % | dafp 50 % | Torch-Pruning 30 % | Torch-Pruning 50 % |",
             "|---|---|---|---|---|"]  # fmt: skip
    cells: dict[str, list[str]] = {k: [] for k in ("done", "exact", "failed", "seconds", "ours")}
    for tool in ("dafp", "torch-pruning"):
        for ratio in (0.3, 0.5):
            mine = [by[n, tool, ratio] for n in nets if (n, tool, ratio) in by]
            done = [r for r in mine if r["outcome"] == "done" and r["left"] < r["params"]]
            both = [r for r in done if _done(by, r["net"], ratio)]
            cells["done"].append(f"{len(done)} of {len(mine)}")
            cells["exact"].append(str(sum(r.get("exact") is True for r in done)))
            cells["failed"].append(str(len(mine) - len(done)))
            cells["seconds"].append(f"{sum(r['total_s'] for r in both):.1f} ({len(both)} nets)")
            cells["ours"].append(f"{sum(r['left'] for r in both) / sum(r['params'] for r in both):.1%}"
                                 if both else "–")  # fmt: skip
    names = {"done": "networks pruned", "exact": "of these exact", "failed": "not pruned",
             "seconds": "total seconds, where both tools succeed",
             "ours": "parameters left, where both tools succeed"}  # fmt: skip
    lines += [f"| {names[k]} | {' | '.join(v)} |" for k, v in cells.items()]
    return [*lines, *_memory(by, nets)]


def _memory(by: dict[Any, Record], nets: list[str]) -> list[str]:
    """Lines on memory, of the first job of a process: the second reuses memory of the first."""
    cells = []
    for tool in ("dafp", "torch-pruning"):
        mine = [m for n in nets if (m := _share(by.get((n, tool, 0.3)))) is not None]
        below = sum(m <= 2 for m in mine)
        cells += [
            f"{below} of {len(mine)}, median {statistics.median(mine):.2f}" if mine else "–",
            "",
        ]
    own = [m for n in nets if (m := _share(by.get((n, "forward", 0.0)))) is not None]
    above = sum(m > 1 for m in own)
    ours = [r for n in nets if "peak_bytes" in (r := by.get((n, "dafp", 0.3), {}))]
    large, small = [], []
    for record in ours:
        (large if 4 * record["params"] >= LARGE else small).append(record)
    below = sum(r["peak_bytes"] <= 8 * r["params"] for r in large)
    typical = statistics.median(r["peak_bytes"] for r in small) / 1e6 if small else 0.0
    return [
        f"| peak memory at most 2× the parameters | {' | '.join(cells)} |", "",
        f"Of the {len(large)} networks with {LARGE / 1e6:.0f} MB of parameters or more, {below} stay below 2× at "
        f"30 %. The smaller ones need {typical:.0f} MB at the median, independent of their number of parameters, "
        "because verification runs the masked and the pruned network once each. One forward pass alone, without "
        f"pruning, needs more than 1× in {above} of {len(own)} networks (median {statistics.median(own):.2f})."
        if own else "",
    ]  # fmt: skip


def _share(record: Record | None) -> float | None:
    """Peak memory divided by the bytes of the parameters."""
    if record is None or "peak_bytes" not in record:
        return None
    return float(record["peak_bytes"] / (4 * record["params"]))


def _done(by: dict[Any, Record], net: str, ratio: float) -> bool:
    pair = [by.get((net, tool, ratio), {"outcome": ""}) for tool in ("dafp", "torch-pruning")]
    return all(r["outcome"] == "done" for r in pair)


def _time_by_depth(by: dict[Any, Record]) -> list[str]:
    """Seconds against depth: they should grow in proportion to the number of layers."""
    lines = [
        "## Time against depth",
        "",
        "| network | dafp s | trace s | Torch-Pruning s |",
        "|---|---|---|---|",
    ]
    names = [*(f"torchvision:densenet{d}" for d in (121, 169, 201)),
             *dict.fromkeys(n for n, _, _ in by if n.startswith("dafp:"))]  # fmt: skip
    for name in names:
        ours, theirs = by.get((name, "dafp", 0.5)), by.get((name, "torch-pruning", 0.5))
        if ours and "total_s" in ours:
            other = theirs.get("total_s", theirs["outcome"]) if theirs else "–"
            lines.append(f"| {name} | {ours['total_s']} | {ours['trace_s']} | {other} |")
    return lines


def _rows(by: dict[Any, Record], nets: list[str]) -> list[str]:
    lines = ["## Every classifier", "",
             "*prunable*: share of filters that can be removed. *left*: share of the parameters that is left. "
             "*s*: seconds at 50 %. *memory*: peak of trace and prune above the loaded model, divided by the bytes of "
             "its parameters; *forward*: the same for one forward pass. The last column is the most frequent reason "
             "for keeping filters, as `graph.kept` reported it.", "",
             "| network | prunable | left 30 % | left 50 % | exact | s | memory | forward | "
             "Torch-Pruning left 50 % | exact | s | why dafp keeps filters |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for net in nets:
        a, b = (by.get((net, "dafp", ratio), {"outcome": "–"}) for ratio in (0.3, 0.5))
        t = by.get((net, "torch-pruning", 0.5), {"outcome": "–"})
        memory, own = _share(a), _share(by.get((net, "forward", 0.0)))
        lines.append(" | ".join([
            f"| {net}", f"{b['prunable']:.0%}" if "prunable" in b else "–", _left(a), _left(b),
            _exact(b), str(b.get("total_s", "–")), f"{memory:.1f}" if memory is not None else "–",
            f"{own:.1f}" if own is not None else "–", _left(t), _exact(t), str(t.get("total_s", "–")), f"{b.get('why') or b.get('error', '')} |",
        ]))  # fmt: skip
    return lines


def _left(record: Record) -> str:
    if record["outcome"] != "done":
        return record["outcome"]
    return f"{record['left'] / record['params']:.0%}"


def _exact(record: Record) -> str:
    return (
        {True: "yes", False: "**no**", None: "?"}[record.get("exact")] if "exact" in record else "–"
    )
