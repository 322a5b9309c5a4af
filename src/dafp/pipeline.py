"""A run: baseline, sparse training, pruning, finetuning; its directory is its whole state."""

import dataclasses
import math
from pathlib import Path

import torch
from torch import nn

from . import artifact
from .config import Config
from .cost import layer_costs
from .data import DataSet
from .data import load as load_data
from .distributed import broadcast_text, make_accelerator
from .graph import ChannelGraph
from .models import build, reinitialise
from .plan import PruningPlan
from .rundir import Paths, Result, Row, held, read_result, write_metrics, write_result
from .selection import to_target
from .slimming import criterion_named
from .sparsity import SparseTraining
from .summary import describe, layers, machine, versions
from .surgery import prune
from .tracing import trace
from .train import Nobody, Setting, Watcher, evaluate, train_stage


def run(config: Config, out: Path, watcher: Watcher | None = None) -> Result:
    """Do what is missing of a run and return its result.

    The same call again after an interruption goes on where it stopped, to the same result.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    paths = Paths(out)
    accelerator = make_accelerator(config.precision, config.tracker, str(out))
    with held(paths, config, accelerator.is_main_process):
        accelerator.wait_for_everyone()
        if paths.result.exists():
            return read_result(paths.result)
        data = open_data(config)
        if config.tracker:
            accelerator.init_trackers("dafp")
        setting = Setting(config, data, accelerator, watcher or Nobody())
        result = _stages(setting, paths)
        if accelerator.is_main_process:
            write_result(paths, result)
        if config.tracker:
            accelerator.end_training()
        accelerator.wait_for_everyone()
    return result


def _stages(setting: Setting, paths: Paths) -> Result:
    config, watcher = setting.config, setting.watcher
    rows: list[Row] = []
    stages: list[Row] = []

    def finished(name: str, model: nn.Module, filters: int, new: list[Row]) -> None:
        rows.extend(new)
        if setting.accelerator.is_main_process:
            write_metrics(paths, rows)
        stages.append(describe(name, model, filters, graph, example, new))

    sparse_model = make_model(config, setting.data.classes)
    example = torch.zeros(1, *setting.data.shape)
    graph = trace(sparse_model, example, residual=config.residual, keep=config.keep)
    if config.baseline.epochs:
        model = make_model(config, setting.data.classes)
        new = train_stage(model, setting, "baseline", config.baseline, paths.checkpoint("baseline"))
        finished("baseline", model, graph.filters, new)

    def sparse(model: nn.Module, optimizer: torch.optim.Optimizer) -> SparseTraining:
        return SparseTraining(
            model, graph, optimizer, target=config.target, epochs=config.sparse.epochs,
            p=config.p, criterion=config.criterion, step=config.step, unit=config.unit,
        )  # fmt: skip

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
    stages.append(describe("pruned", small, left, graph, example, [], accuracy))

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
        "layers": layers(
            graph, plan, layer_costs(sparse_model, example), layer_costs(small, example)
        ),
        "versions": versions(),
        "machine": machine(),
    }  # fmt: skip


def open_data(config: Config) -> DataSet:
    """The data set of a run."""
    return load_data(
        config.data, Path(config.root), val_share=config.val_share, images=config.images or None,
        seed=config.seed,
    )  # fmt: skip


def make_model(config: Config, classes: int) -> nn.Module:
    """The network of a run, its weights fixed by the seed or read from a file."""
    torch.manual_seed(config.seed)
    own_width = {} if config.width == 1.0 else {"width": config.width}
    model = build(config.model, classes=classes, **own_width)
    if config.weights:
        artifact.load_weights(model, config.weights)
    layout = torch.channels_last if config.channels_last else torch.contiguous_format
    return model.to(memory_format=layout)  # type: ignore[call-overload, no-any-return]


def _plan(setting: Setting, paths: Paths, model: nn.Module, graph: ChannelGraph) -> PruningPlan:
    """Chosen on rank 0, the same everywhere."""
    text = ""
    if setting.accelerator.is_main_process:
        config = setting.config
        scores = criterion_named(config.criterion)(model, graph)
        text = to_target(scores, graph, config.target, config.unit).to_json()
        artifact.write_aside(paths.plan, text.encode())
    return graph.resolve(PruningPlan.from_json(broadcast_text(text, setting.accelerator)))
