"""The same pruning task by dafp and by Torch-Pruning, with the checks of benchmarks/zoo.py."""

import copy
import time
from typing import Any

import torch
import torch_pruning
from torch import Tensor, nn

import dafp

Result = dict[str, Any]
TOLERANCE = 1e-4  # of the largest output, in float32


def prune_by_dafp(model: nn.Module, example: Tensor, ratio: float) -> Result:
    """Trace, score, select, prune and verify; residual streams are coupled, as in Torch-Pruning."""
    watch = Stopwatch()
    graph = dafp.trace(model, example, residual="couple")
    traced = watch.seconds()
    if not graph.groups:
        return {"outcome": "kept whole", "trace_s": traced, "total_s": traced, "why": _why(graph)}
    plan = dafp.selection.uniform(dafp.criteria.l2_norm(model, graph), ratio)
    planned = watch.seconds()
    small = dafp.prune(model, graph, plan)
    total, peak = watch.seconds(), watch.peak_bytes()
    left = sum(p.numel() for p in small.parameters())
    gap = compare(small, dafp.mask(model, graph, plan), example)
    removed = sum(g.size - len(plan.keep[g.name]) for g in graph.groups)
    return {
        "outcome": "done", "exact": gap <= TOLERANCE, "gap": gap, "left": left,
        "trace_s": traced, "plan_s": round(planned - traced, 3),
        "prune_s": round(total - planned, 3), "total_s": total,
        "peak_bytes": peak, "prunable": _producers(graph) / max(1, _all(model)),
        "removed": removed / max(1, graph.filters), "why": _why(graph),
    }  # fmt: skip


def prune_by_torch_pruning(model: nn.Module, example: Tensor, ratio: float) -> Result:
    """Build the dependency graph and prune by magnitude, as its documentation shows."""
    small = copy.deepcopy(model)
    outputs = [m for m in small.modules() if _makes_classes(m)]
    watch = Stopwatch()
    pruner = torch_pruning.pruner.MagnitudePruner(
        small, example, importance=torch_pruning.importance.MagnitudeImportance(p=2),
        pruning_ratio=ratio, ignored_layers=outputs,
    )  # fmt: skip
    pruner.step()
    total, peak = watch.seconds(), watch.peak_bytes()
    left = sum(p.numel() for p in small.parameters())
    result: Result = {"outcome": "done", "left": left, "total_s": total, "peak_bytes": peak}
    with torch.no_grad():
        small.eval()(example)  # a model that does not run is a failure
    masked = masked_like(model, small)
    if masked is None:
        return {**result, "exact": None}
    gap = compare(small, masked, example)
    return {**result, "exact": gap <= TOLERANCE, "gap": gap}


def run_once(model: nn.Module, example: Tensor, ratio: float) -> Result:
    """Run one forward pass without pruning."""
    watch = Stopwatch()
    with torch.no_grad():
        model.eval()(example)
    return {"outcome": "done", "total_s": watch.seconds(), "peak_bytes": watch.peak_bytes()}


PRUNE = {
    "dafp": prune_by_dafp, "torch-pruning": prune_by_torch_pruning, "forward": run_once,
}  # fmt: skip


def warm_up(tool: str) -> None:
    """Prune a small network first, so that lazy loading is not part of a measurement."""
    layers = (
        nn.Conv2d(3, 64, 7, 2, 3), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(64, 64, 3, 1, 1, groups=64), nn.BatchNorm2d(64), nn.SiLU(), nn.AvgPool2d(2),
        nn.Conv2d(64, 64, 1), nn.Hardswish(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Sigmoid(),
    )  # fmt: skip
    PRUNE[tool](nn.Sequential(*layers, nn.Linear(64, 1000)).eval(), torch.randn(1, 3, 64, 64), 0.5)


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


@torch.no_grad()
def compare(small: nn.Module, masked: nn.Module, example: Tensor) -> float:
    """Largest difference on fresh random images, relative to the largest output."""
    x = torch.randn(example.shape, generator=torch.Generator().manual_seed(7))
    a, b = (m.eval()(x) for m in (small, masked))
    gap = float((a - b).abs().max() / b.abs().max())
    if gap > TOLERANCE:  # repeat in float64 to exclude rounding errors
        a, b = (copy.deepcopy(m).double()(x.double()) for m in (small, masked))
        gap = float((a - b).abs().max() / b.abs().max())
    return gap


@torch.no_grad()
def masked_like(model: nn.Module, small: nn.Module) -> nn.Module | None:
    """The original model; the input slices of its weights that `small` lost are set to zero.

    The kept input channels of a layer are found by comparing weights, which are equal to those of
    the original. None if they cannot be identified.
    """
    masked = copy.deepcopy(model)
    layers = dict(small.named_modules())
    for name, module in masked.named_modules():
        if not isinstance(module, (nn.Conv2d, nn.Linear)) or name not in layers:
            continue
        old, new = module.weight, layers[name].weight
        if old.shape[1] == new.shape[1]:
            continue
        kept = _columns(old.flatten(2).sum(2) if old.dim() > 2 else old,
                        new.flatten(2).sum(2) if new.dim() > 2 else new)  # fmt: skip
        if kept is None:
            return None
        gone = torch.ones(old.shape[1], dtype=torch.bool)
        gone[kept] = False
        module.weight[:, gone] = 0
    return masked


def _columns(old: Tensor, new: Tensor) -> Tensor | None:
    """The columns of the old matrix that the rows of the new one consist of."""
    for row in new[: min(8, len(new))]:
        for source in old[(old == row[0]).any(1)]:  # rows that contain its first value
            match = source[:, None] == row
            if bool((match.sum(0) == 1).all()):
                return match.float().argmax(0)
    return None


def _makes_classes(module: nn.Module) -> bool:
    wide = getattr(module, "out_features", None) or getattr(module, "out_channels", None)
    return isinstance(module, (nn.Linear, nn.Conv2d)) and wide in (10, 1000)


def _producers(graph: dafp.ChannelGraph) -> int:
    return sum(len(s.index) for g in graph.groups if g.kind == "filter" for s in g.producers)


def _all(model: nn.Module) -> int:
    """Number of filters of the network, without the output layer."""
    layers = [m for m in model.modules() if isinstance(m, (nn.Conv2d, nn.Linear))]
    wide = [m for m in layers if not _makes_classes(m) and getattr(m, "groups", 1) == 1]
    grouped = [m for m in layers if getattr(m, "groups", 1) > 1 and m.groups != m.in_channels]
    return sum(m.weight.shape[0] for m in [*wide, *grouped])


def _why(graph: dafp.ChannelGraph) -> str:
    """The reason that keeps the most filters, other than being an output."""
    sizes: dict[str, int] = {}
    for line in graph.kept:
        if line.op != "output":
            key = f"{line.reason} ({line.op})"
            sizes[key] = sizes.get(key, 0) + line.size
    return max(sizes, key=lambda k: sizes[k]) if sizes else ""
