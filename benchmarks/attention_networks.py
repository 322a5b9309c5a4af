"""Half of the multiply-adds of networks with attention and LayerNorm: exact, and how fast?

    .venv-zoo/bin/python benchmarks/attention_networks.py              # those not measured yet
    .venv-zoo/bin/python benchmarks/attention_networks.py --only swin  # by a part of the name
    .venv-zoo/bin/python benchmarks/attention_networks.py --table      # write docs/attention.md

Networks of timm and transformers with random weights, coupled streams, channels by their L2 norm,
the same share of every layer. Measured are: the multiply-adds left, predicted and counted; the gap
to the masked network on three inputs of different batch (and image) size and in train mode; a
training step; the gap of the network loaded from its file, and of the ONNX file in ONNX Runtime;
processor seconds of trace and of prune with its verification (one thread).

Torch-Pruning beside: by its recipes for ViT of timm and Swin of transformers (`recipes.py`), by its
pruner with the output layers ignored for the others; whether the result runs on the three inputs.
Rows: benchmarks/results/attention_networks.jsonl; resumable, measured rows are skipped.
"""

import argparse
import copy
import json
import os
import tempfile
from pathlib import Path
from typing import Any

os.environ |= {"HF_HUB_OFFLINE": "1"}

import torch
from torch import nn

import networks

SHIM = networks.shim_torchvision()

import dafp  # noqa: E402
import families  # noqa: E402
import recipes  # noqa: E402
from comparison import gaps  # noqa: E402
from dafp.export import to_onnx  # noqa: E402
from dafp.network.calling import call_model, tensors_in  # noqa: E402
from dafp.storage.revision import code_revision  # noqa: E402
from docpage import fill  # noqa: E402
from peers import Stopwatch  # noqa: E402
from result_files import FOLDER, append_rows, read_rows  # noqa: E402

RESULTS = FOLDER / "attention_networks.jsonl"
REMOVED = 0.5
Row = dict[str, Any]


def by_dafp(subject: families.Subject) -> Row:
    model, example = subject.model, subject.inputs[0]
    watch = Stopwatch()
    graph = dafp.trace(model, example, residual="couple")
    traced = watch.seconds()
    scores = dafp.criteria.l2_norm(model, graph)
    plan = dafp.selection.to_target(scores, graph, REMOVED, "macs", dafp.selection.uniform)
    watch = Stopwatch()
    small = dafp.prune(model, graph, plan)
    pruned = watch.seconds()
    return {
        "trace_s": traced, "prune_s": pruned,
        "macs_left": plan.after.macs / plan.before.macs,
        "as_counted": dafp.cost(small, example).macs == plan.after.macs,
        "parameters_left": plan.after.params / plan.before.params,
        **gaps(small, dafp.mask(model, graph, plan), subject.inputs),
        "step": _trains(small, subject.inputs[1]), **_files(model, small, example),
    }  # fmt: skip


def by_torch_pruning(subject: families.Subject) -> Row:
    watch = Stopwatch()
    small = recipes.to_target(subject, REMOVED)
    seconds = watch.seconds()
    before, after = (dafp.cost(m, subject.inputs[0]).macs for m in (subject.model, small))
    runs = [_runs(small, x) for x in subject.inputs]
    return {
        "recipe": recipes.name_of(subject.model), "total_s": seconds, "macs_left": after / before,
        "runs": sum(runs), "step": _trains(small, subject.inputs[1]),
    }  # fmt: skip


TOOLS = {"dafp": by_dafp, "torch-pruning": by_torch_pruning}


def _runs(model: nn.Module, x: Any) -> bool:
    try:
        with torch.no_grad():
            call_model(model.eval(), x)
    except Exception:  # noqa: BLE001 - a failure is a result here
        return False
    return True


def _trains(small: nn.Module, x: Any) -> bool:
    """Does a training step change the weights, and leave finite outputs?"""
    model = copy.deepcopy(small).train()
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    outputs = [t for t in tensors_in(call_model(model, x)) if t.requires_grad]
    sum(t.float().square().mean() for t in outputs).backward()  # type: ignore[union-attr]
    optimizer.step()
    changed = any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    return changed and all(bool(p.isfinite().all()) for p in model.parameters())


def _files(model: nn.Module, small: nn.Module, example: Any) -> Row:
    """The gaps of the network loaded from its file and of the ONNX file."""
    found: Row = {}
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        file = dafp.save(small, Path(folder) / "small.safetensors")
        again = dafp.load(file or Path(folder) / "small.safetensors", copy.deepcopy(model))
        ours, theirs = (tensors_in(call_model(m.eval(), example)) for m in (small, again))
        found["reloaded"] = all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
        try:
            exported = to_onnx(small, example, Path(folder) / "small.onnx")
            found["onnx_gap"] = max(exported.gaps.values())
        except (dafp.DafpError, RuntimeError) as error:
            found["onnx_error"] = str(error).splitlines()[0][:200]
    return found


def run(names: list[str]) -> None:
    known = {(r["net"], r["tool"]) for r in read_rows(RESULTS)}
    code = code_revision(Path(dafp.__file__).parent, dafp.__version__)
    for name in names:
        for tool, measure in TOOLS.items():
            if (name, tool) in known:
                continue
            subject = families.subject(name)
            row = {"net": name, "tool": tool, "revision": code}
            try:
                row |= {"outcome": "done", **measure(subject)}
            except Exception as error:  # noqa: BLE001 - a failure is a result here
                first = str(error).splitlines()[0] if str(error) else ""
                row |= {"outcome": "failed", "error": f"{type(error).__name__}: {first}"[:200]}
            print(json.dumps(row), flush=True)
            append_rows(RESULTS, row)


def table() -> list[str]:
    rows = {(r["net"], r["tool"]): r for r in read_rows(RESULTS)}
    lines = [
        "| network | multiply-adds left | exact | train mode | as predicted | training step | file "
        "| ONNX | trace s | prune s | Torch-Pruning: left | runs | s |",
        "|---|--:|---|---|---|---|---|---|--:|--:|--:|---|--:|",
    ]
    for net in dict.fromkeys(net for net, _ in rows):
        ours = rows.get((net, "dafp"), {"outcome": "not run"})
        lines.append(f"| {net} | {' | '.join([*_ours(ours), *_theirs(rows, net)])} |")
    return lines


def _ours(row: Row) -> list[str]:
    if row["outcome"] != "done":
        return [row.get("error", row["outcome"]), *["–"] * 8]
    train = "–" if row["train_gap"] is None else _yes(row["train_gap"] <= 1e-4)
    onnx = f"{row['onnx_gap']:.0e}" if "onnx_gap" in row else "no"
    return [
        f"{row['macs_left']:.1%}", f"{_yes(row['exact'])} ({row['inputs']} inputs)", train,
        _yes(row["as_counted"]), _yes(row["step"]), _yes(row["reloaded"]), onnx,
        f"{row['trace_s']:.1f}", f"{row['prune_s']:.1f}",
    ]  # fmt: skip


def _theirs(rows: dict[Any, Row], net: str) -> list[str]:
    row = rows.get((net, "torch-pruning"), {"outcome": "not run"})
    if row["outcome"] != "done":
        return [row["outcome"], "–", "–"]
    recipe = f" ({row['recipe']})" if row["recipe"] else ""
    return [
        f"{row['macs_left']:.1%}{recipe}",
        f"{row['runs']} of 3 inputs",
        f"{row['total_s']:.1f}",
    ]


def _yes(value: bool) -> str:
    return "yes" if value else "**no**"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--table", action="store_true", help="only write docs/attention.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        chosen = [n for n, (family, _) in families.BUILDERS.items() if family == "attention"]
        run([name for name in chosen if options.only in name])
    fill("attention.md", "networks", ["", *table(), ""])


if __name__ == "__main__":
    main()
