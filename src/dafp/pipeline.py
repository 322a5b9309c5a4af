"""A run: baseline, sparse training, pruning, finetuning; its directory is its whole state."""

import dataclasses
import fcntl
import json
import math
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from . import __version__, artifact
from .config import Config, changed, differences, read_toml, to_toml
from .cost import cost
from .data import load as load_data
from .distributed import broadcast_text, make_accelerator
from .errors import FileError, TrainingError
from .graph import ChannelGraph
from .latency import median_latency
from .models import build, reinitialise
from .plan import PruningPlan
from .selection import to_target
from .slimming import criterion_named
from .sparsity import SparseTraining
from .surgery import prune
from .tracing import trace
from .train import Nobody, Row, Setting, Watcher, evaluate, make_optimizer, train_stage

Result = dict[str, Any]


@dataclass(frozen=True)
class Paths:
    """Where things are in the directory of a run."""

    root: Path

    @property
    def config(self) -> Path:
        return self.root / "config.toml"

    @property
    def metrics(self) -> Path:
        return self.root / "metrics.jsonl"

    @property
    def plan(self) -> Path:
        return self.root / "plan.json"

    @property
    def pruned(self) -> Path:
        return self.root / "pruned.safetensors"

    @property
    def model(self) -> Path:
        return self.root / "model.safetensors"

    @property
    def result(self) -> Path:
        return self.root / "result.json"

    def checkpoint(self, stage: str) -> Path:
        return self.root / f"{stage}.checkpoint"


def run(config: Config, out: Path, watcher: Watcher | None = None) -> Result:
    """Do what is missing of a run and return its result.

    The same call again after an interruption goes on where it stopped, to the same result.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    paths = Paths(out)
    accelerator = make_accelerator(config.precision, config.tracker, str(out))
    with _held(paths, config, accelerator.is_main_process):
        accelerator.wait_for_everyone()
        if paths.result.exists():
            return read_result(paths.result)
        data = load_data(
            config.data, Path(config.root), val_share=config.val_share,
            images=config.images or None, seed=config.seed,
        )  # fmt: skip
        if config.tracker:
            accelerator.init_trackers("dafp")
        setting = Setting(config, data, accelerator, watcher or Nobody())
        result = _stages(setting, paths)
        if accelerator.is_main_process:
            artifact.write_aside(paths.result, _json(result))
        if config.tracker:
            accelerator.end_training()
        accelerator.wait_for_everyone()
    return result


def read_config(out: Path) -> Config:
    """The configuration that a run directory was started with."""
    return changed(Config(), read_toml(Paths(out).config), str(Paths(out).config))


def read_result(path: Path) -> Result:
    """The result of a finished run."""
    try:
        result: Result = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise FileError(f"{path} cannot be read: {error}; delete it to make it anew") from error
    return result


def _stages(setting: Setting, paths: Paths) -> Result:
    config, watcher = setting.config, setting.watcher
    rows: list[Row] = []
    stages: list[Row] = []

    def finished(name: str, model: nn.Module, filters: int, new: list[Row]) -> None:
        rows.extend(new)
        if setting.accelerator.is_main_process:
            _write_metrics(paths, rows)
        stages.append(_describe(name, model, filters, graph, example, setting, new))

    sparse_model = make_model(config, setting.data.classes)
    example = torch.zeros(1, *setting.data.shape)
    graph = trace(sparse_model, example, residual=config.residual, keep=config.keep)

    def sparse(model: nn.Module, optimizer: torch.optim.Optimizer) -> SparseTraining:
        return SparseTraining(
            model, graph, optimizer, target=config.target, epochs=config.sparse.epochs,
            p=config.p, criterion=config.criterion, step=config.step, unit=config.unit,
        )  # fmt: skip

    # what it refuses, it refuses now and not after hours of training the baseline
    sparse(sparse_model, make_optimizer(sparse_model, config, config.sparse.lr)).detach()
    if config.baseline.epochs:
        model = make_model(config, setting.data.classes)
        new = train_stage(model, setting, "baseline", config.baseline, paths.checkpoint("baseline"))
        finished("baseline", model, graph.filters, new)

    new = train_stage(
        sparse_model, setting, "sparse", config.sparse, paths.checkpoint("sparse"), sparse
    )
    finished("sparse", sparse_model, graph.filters, new)
    reached = float(new[-1]["sparsity"])

    watcher.say("pruning, and verifying the pruned model against the masked one")
    plan = _plan(setting, paths, sparse_model, graph)
    small = prune(sparse_model.cpu().eval(), graph, plan, config.compensate)
    left = sum(len(plan.keep[g.name]) for g in graph.groups if g.kind == "filter")
    if setting.accelerator.is_main_process:
        artifact.save(small, paths.pruned)
    small.to(setting.accelerator.device)
    accuracy, _ = evaluate(small, setting, "test")
    stages.append(_describe("pruned", small, left, graph, example, setting, [], accuracy))

    final, schedule = "finetuned", config.finetune
    if config.after != "finetune":
        final = config.after
        torch.manual_seed(config.seed)
        reinitialise(small)
        if config.after == "scratch-B":
            assert plan.before is not None
            assert plan.after is not None
            longer = schedule.epochs * plan.before.macs / max(1, plan.after.macs)
            schedule = dataclasses.replace(schedule, epochs=math.ceil(longer))
    stage = "finetune" if config.after == "finetune" else "scratch"
    new = train_stage(small, setting, stage, schedule, paths.checkpoint(stage))
    finished(final, small, left, new)
    if setting.accelerator.is_main_process:
        artifact.save(small.cpu().eval(), paths.model)
    return {
        "model": config.model, "data": config.data, "method": config.method, "seed": config.seed,
        "stages": stages,
        "sparsity": {
            "target": config.target, "unit": config.unit, "reached": reached, "p": config.p,
            "removed": 1 - left / max(1, graph.filters),
            "of_all_filters": (graph.filters - left) / max(1, graph.all_filters),
            "forced": abs(reached - config.target) > 0.02,
        },
        "layers": _layers(graph, plan),
        "versions": versions(),
        "machine": {"cpu": platform.processor() or platform.machine(),
                    "threads": torch.get_num_threads()},
    }  # fmt: skip


def make_model(config: Config, classes: int) -> nn.Module:
    """The network of a run, its weights fixed by the seed or read from a file."""
    torch.manual_seed(config.seed)
    own_width = {} if config.width == 1.0 else {"width": config.width}
    model = build(config.model, classes=classes, **own_width)
    if config.weights:
        artifact.load_weights(model, config.weights)
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    return model.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]


def versions() -> dict[str, str]:
    return {"dafp": __version__, "torch": torch.__version__, "python": platform.python_version()}


def _plan(setting: Setting, paths: Paths, model: nn.Module, graph: ChannelGraph) -> PruningPlan:
    """Chosen on rank 0, the same everywhere."""
    text = ""
    if setting.accelerator.is_main_process:
        config = setting.config
        scores = criterion_named(config.criterion)(model, graph)
        text = to_target(scores, graph, config.target, config.unit).to_json()
        artifact.write_aside(paths.plan, text.encode())
    return graph.resolve(PruningPlan.from_json(broadcast_text(text, setting.accelerator)))


def _describe(
    name: str, model: nn.Module, filters: int, graph: ChannelGraph, example: Tensor,
    setting: Setting, rows: list[Row], accuracy: float | None = None,
) -> Row:  # fmt: skip
    """One line of the closing table."""
    copy = example.to(setting.accelerator.device)
    whole = cost(model, copy)
    row: Row = {
        "stage": name, "accuracy": accuracy if accuracy is not None else rows[-1]["test_accuracy"],
        "filters": filters, "all_filters": graph.all_filters - (graph.filters - filters),
        "params": whole.params, "macs": whole.macs, "latency_s": median_latency(model, copy),
    }  # fmt: skip
    judged = [r for r in rows if r["val_accuracy"] is not None]
    if judged:
        best = max(judged, key=lambda r: r["val_accuracy"])
        row |= {
            "best_val_epoch": best["epoch"], "best_val_accuracy": best["val_accuracy"],
            "best_val_test_accuracy": best["test_accuracy"],
        }  # fmt: skip
    return row


def _layers(graph: ChannelGraph, plan: PruningPlan) -> list[Row]:
    """Widths before and after, per group."""
    return [
        {"name": g.name, "kind": g.kind, "before": g.size, "after": len(plan.keep[g.name])}
        for g in graph.groups
    ]


def _write_metrics(paths: Paths, rows: list[Row]) -> None:
    lines = "".join(json.dumps(row, sort_keys=True) + "\n" for row in rows)
    artifact.write_aside(paths.metrics, lines.encode())


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


@contextmanager
def _held(paths: Paths, config: Config, main: bool) -> Iterator[None]:
    """The run directory, for this process alone, with the configuration that it was begun with."""
    if not main:
        yield
        return
    try:
        paths.root.mkdir(parents=True, exist_ok=True)
        lock = open(paths.root / ".lock", "w")  # noqa: SIM115 - held until the run ends
    except OSError as error:
        raise FileError(f"cannot use {paths.root} for a run: {error.strerror}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise FileError(f"another process is running in {paths.root}") from error
        for rest in paths.root.glob(".*.writing"):
            rest.unlink()
        if paths.config.exists():
            changes = differences(read_config(paths.root), config)
            if changes:
                raise TrainingError(
                    f"{paths.root} holds a run with another configuration ({'; '.join(changes)}). "
                    "Give another --out, or delete the directory to start anew"
                )
        else:
            artifact.write_aside(paths.config, to_toml(config).encode())
        yield
