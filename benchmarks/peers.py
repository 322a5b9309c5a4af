"""The same pruning task by dafp and by Torch-Pruning, with the checks of benchmarks/zoo.py."""

import copy
import time
from typing import Any

import torch
import torch_pruning
from torch import nn

import dafp
from comparison import gaps
from dafp.network.calling import call_model
from families import Subject
from masked_peer import masked_like

Result = dict[str, Any]


def prune_by_dafp(subject: Subject, ratio: float, residual: str = "couple") -> Result:
    """Trace, score, select, prune and verify."""
    model, example = subject.model, subject.inputs[0]
    watch = Stopwatch()
    graph = dafp.trace(model, example, residual=residual)
    traced = watch.seconds()
    outputs = sorted({k.name.partition("[")[0] for k in graph.kept if k.op == "output"})
    found: Result = {"why": _why(graph), "notes": [n[:60] for n in graph.notes], "outputs": outputs}
    if not graph.groups:
        return {"outcome": "kept whole", "trace_s": traced, "total_s": traced, **found}
    plan = graph.resolve(dafp.selection.uniform(dafp.criteria.l2_norm(model, graph), ratio))
    planned = watch.seconds()
    small = dafp.prune(model, graph, plan)
    total, peak = watch.seconds(), watch.peak_bytes()
    removed = sum(g.size - len(plan.keep.get(g.name, range(g.size))) for g in graph.groups)
    return {
        "outcome": "done", **gaps(small, dafp.mask(model, graph, plan), subject.inputs),
        "left": _parameters(small), "trace_s": traced, "plan_s": round(planned - traced, 3),
        "prune_s": round(total - planned, 3), "total_s": total, "peak_bytes": peak,
        "prunable": _share(graph),
        "removed": removed / max(1, graph.filters), "macs": graph.whole.macs,
        "macs_predicted": plan.after.macs, "macs_counted": dafp.cost(small, example).macs, **found,
    }  # fmt: skip


def keep_by_dafp(subject: Subject, ratio: float) -> Result:
    """`prune_by_dafp` without the channels of residual streams, the default of `dafp.trace`."""
    return prune_by_dafp(subject, ratio, residual="keep")


def prune_by_torch_pruning(subject: Subject, ratio: float) -> Result:
    """Build the dependency graph and prune by magnitude, as its documentation shows."""
    small = copy.deepcopy(subject.model)
    outputs = [m for n, m in small.named_modules() if n in subject.outputs or _makes_classes(m)]
    watch = Stopwatch()
    pruner = torch_pruning.pruner.MagnitudePruner(
        small, subject.inputs[0], importance=torch_pruning.importance.MagnitudeImportance(p=2),
        pruning_ratio=ratio, ignored_layers=outputs,
    )  # fmt: skip
    pruner.step()
    total, peak = watch.seconds(), watch.peak_bytes()
    result: Result = {
        "outcome": "done", "left": _parameters(small), "total_s": total, "peak_bytes": peak,
    }  # fmt: skip
    with torch.no_grad():
        call_model(small.eval(), subject.inputs[0])  # a model that does not run is a failure
    masked = masked_like(subject.model, small)
    if masked is None:
        return {**result, "exact": None}
    return {**result, **gaps(small, masked, subject.inputs)}


def run_once(subject: Subject, ratio: float) -> Result:
    """Run one forward pass without pruning."""
    watch = Stopwatch()
    with torch.no_grad():
        call_model(subject.model.eval(), subject.inputs[0])
    return {"outcome": "done", "total_s": watch.seconds(), "peak_bytes": watch.peak_bytes()}


PRUNE = {
    "dafp": prune_by_dafp, "dafp keep": keep_by_dafp, "torch-pruning": prune_by_torch_pruning,
    "forward": run_once,
}  # fmt: skip


def warm_up(tool: str) -> None:
    """Prune a small network first, so that lazy loading is not part of a measurement."""
    layers = (
        nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(64, 64, 3, 1, 1, groups=64), nn.BatchNorm2d(64), nn.SiLU(), nn.AvgPool2d(2),
        nn.Conv2d(64, 64, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Sigmoid(),
    )  # fmt: skip
    model = nn.Sequential(*layers, nn.Linear(64, 1000)).eval()
    PRUNE[tool](Subject(model, (torch.randn(1, 3, 64, 64), torch.randn(2, 3, 64, 64))), 0.5)


class Stopwatch:
    """Processor seconds (one thread) and peak resident memory since it was created."""

    def __init__(self) -> None:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # reset the peak
        self.resident = _status("VmRSS")
        self.start = time.process_time()

    def seconds(self) -> float:
        return round(time.process_time() - self.start, 3)

    def peak_bytes(self) -> int:
        return max(0, _status("VmHWM") - self.resident)


def _status(key: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(key))


def _makes_classes(module: nn.Module) -> bool:
    wide = getattr(module, "out_features", None) or getattr(module, "out_channels", None)
    return isinstance(module, (nn.Linear, nn.Conv2d)) and wide in (10, 1000)


def _parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def _makes_classes(module: nn.Module) -> bool:
    wide = getattr(module, "out_features", None) or getattr(module, "out_channels", None)
    return isinstance(module, (nn.Linear, nn.Conv2d)) and wide in (10, 1000)


def _share(graph: dafp.ChannelGraph) -> float:
    """The share of filters that can be removed, without those of the output."""
    outputs = sum(k.size for k in graph.kept if k.op == "output" and k.kind == "filter")
    return graph.prunable_filters / max(1, graph.all_filters - outputs)


def _why(graph: dafp.ChannelGraph) -> str:
    """The reason that keeps the most filters, other than being an output."""
    sizes: dict[str, int] = {}
    for line in graph.kept:
        if line.op != "output":
            key = f"{line.reason} ({line.op})"
            sizes[key] = sizes.get(key, 0) + line.size
    return max(sizes, key=lambda k: sizes[k]) if sizes else ""
