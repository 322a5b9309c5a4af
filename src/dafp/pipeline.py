"""A run: baseline, sparse training, pruning, finetuning; its directory is its whole state."""

import dataclasses
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from . import artifact, methods
from .config import Config, Schedule
from .cost import layer_costs
from .data import DataSet
from .data import load as load_data
from .distributed import broadcast_text, make_accelerator
from .errors import TrainingError
from .graph import ChannelGraph
from .identity import stage_hash
from .masking import mask
from .models import build, reinitialise
from .plan import PruningPlan
from .repair import repair
from .rundir import Paths, Result, Row, alone, held, read_result, write_metrics, write_result
from .summary import describe, layers, machine, versions
from .surgery import prune
from .tracing import trace
from .train import (
    Addition,
    Nobody,
    Setting,
    Watcher,
    evaluate,
    make_optimizer,
    train_stage,
)


def run(
    config: Config, out: Path, watcher: Watcher | None = None, stages: Path | None = None
) -> Result:
    """Do what is missing of a run and return its result.

    The same call again after an interruption goes on where it stopped, to the same result. Runs
    that are given the same directory `stages` train there once what they have in common.
    """
    if config.threads:
        torch.set_num_threads(config.threads)
    paths = Paths(out, stages)
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
    """All stages, one after the other; those that are done return at once."""
    config, classes = setting.config, setting.data.classes
    method = methods.find(config.method)
    model = make_model(config, classes)
    example = torch.zeros(1, *setting.data.shape)
    graph = trace(model, example, residual=config.residual, keep=config.keep)
    task = methods.Task(model, graph, config, setting.data)
    _refuse_early(method, task)
    book = Book(setting, paths, graph, example)

    if config.baseline.epochs:
        baseline = make_model(config, classes)
        with _place(setting, paths, "baseline") as file:
            rows = train_stage(
                baseline, setting, "baseline", config.baseline, file, publish=book.publish
            )
        book.enter("baseline", baseline, graph.filters, rows)
        if method.from_baseline or method.train is None:
            model.load_state_dict(baseline.state_dict())
    elif config.weights:
        book.enter_given(make_model(config, classes))
    reached = None
    if method.train is not None:
        if method.prepare is not None:
            method.prepare(task)
        add = partial(_add, method, task)
        with _place(setting, paths, "sparse") as file:
            rows = train_stage(model, setting, "sparse", config.sparse, file, add, book.publish)
        book.enter("sparse", model, graph.filters, rows)
        reached = rows[-1].get("sparsity")

    setting.watcher.say("pruning, and verifying the pruned model against the masked one")
    plan = _plan(method, task, setting, paths)
    left = sum(len(plan.keep[g.name]) for g in graph.groups if g.kind == "filter")
    result = {
        "model": config.model, "data": config.data, "method": config.method, "seed": config.seed,
        "stages": book.stages,
        "sparsity": {
            "target": config.target, "unit": config.unit, "reached": reached, "p": config.p,
            "removed": 1 - left / max(1, graph.filters),
            "of_all_filters": (graph.filters - left) / max(1, graph.all_filters),
            "forced": reached is not None and abs(reached - config.target) > 0.02,
        },
        "versions": versions(), "machine": machine(),
    }  # fmt: skip
    empty = [name for name, kept in plan.keep.items() if not kept]
    model.cpu().eval()
    if empty:  # the network is cut in two: nothing is left to finetune
        accuracy, _ = evaluate(_placed(mask(model, graph, plan), setting), setting, "test")
        return {**result, "collapsed": empty[0], "collapsed_accuracy": accuracy}
    small = _pruned(method, task, plan)
    result["layers"] = layers(graph, plan, layer_costs(model, example), layer_costs(small, example))
    book.save(small, paths.pruned)
    accuracy, _ = evaluate(_placed(small, setting), setting, "test")
    book.enter("pruned", small, left, [], accuracy)
    if method.finetunes:
        name, schedule = _last_stage(config, plan)
        if config.after != "finetune":
            torch.manual_seed(config.seed)
            reinitialise(small)
        file = paths.checkpoint(name)
        rows = train_stage(small, setting, name, schedule, file, publish=book.publish)
        book.enter("finetuned" if name == "finetune" else config.after, small, left, rows)
    book.save(small.cpu().eval(), paths.model)
    return result


@contextmanager
def _place(setting: Setting, paths: Paths, stage: str) -> Iterator[Path]:
    """The checkpoint of a stage that other runs may share, for this run alone while it trains."""
    file = paths.checkpoint(stage, stage_hash(setting.config, stage))
    with alone(file, paths, setting.accelerator.is_main_process):
        setting.accelerator.wait_for_everyone()
        yield file


@dataclass
class Book:
    """What a run has come to so far: its metrics on disk, the lines of its closing table."""

    setting: Setting
    paths: Paths
    graph: ChannelGraph
    example: Tensor
    rows: list[Row] = field(default_factory=list)
    stages: list[Row] = field(default_factory=list)

    def enter(
        self, name: str, model: nn.Module, filters: int, rows: list[Row],
        accuracy: float | None = None,
    ) -> None:  # fmt: skip
        """Take in a finished stage."""
        self.publish(rows)
        self.rows.extend(rows)
        self.stages.append(describe(name, model, filters, self.graph, self.example, rows, accuracy))

    def enter_given(self, model: nn.Module) -> None:
        """The network as it was given: what all later stages are compared with."""
        accuracy, _ = evaluate(_placed(model, self.setting), self.setting, "test")
        self.enter("baseline", model, self.graph.filters, [], accuracy)

    def publish(self, rows: list[Row]) -> None:
        """Put the epochs so far on disk, those of a stage that is still running too."""
        if self.setting.accelerator.is_main_process:
            write_metrics(self.paths, self.rows + rows)

    def save(self, model: nn.Module, path: Path) -> None:
        if self.setting.accelerator.is_main_process:
            artifact.save(model, path)


def _add(
    method: methods.Method, task: methods.Task, model: nn.Module, optimizer: Optimizer
) -> Addition:
    assert method.train is not None
    return method.train(dataclasses.replace(task, model=model), optimizer)


def _refuse_early(method: methods.Method, task: methods.Task) -> None:
    """What a method refuses, it refuses now and not after hours of training the baseline."""
    config = task.config
    starts_trained = method.train is None or method.from_baseline
    if starts_trained and not config.baseline.epochs and not config.weights:
        raise TrainingError(
            f"{method.name} prunes a trained network: set baseline.epochs, or give weights"
        )
    if method.train is not None:
        model = make_model(config, task.data.classes)
        method.train(
            dataclasses.replace(task, model=model), make_optimizer(model, config, config.sparse.lr)
        )


def _pruned(method: methods.Method, task: methods.Task, plan: PruningPlan) -> nn.Module:
    config = task.config
    if not (config.repair or method.repairs):
        return prune(task.model, task.graph, plan, config.compensate)
    whole = repair(
        task.model, task.graph, plan, task.few(), config.compensate, seed=config.seed
    )  # fmt: skip
    return prune(whole, task.graph, plan)


def _last_stage(config: Config, plan: PruningPlan) -> tuple[str, Schedule]:
    """Finetuning, or training anew: as long, or with as many multiply-adds as the whole network."""
    if config.after == "finetune":
        return "finetune", config.finetune
    if config.after == "scratch-E":
        return "scratch", config.finetune
    assert plan.before is not None
    assert plan.after is not None
    longer = config.finetune.epochs * plan.before.macs / max(1, plan.after.macs)
    return "scratch", dataclasses.replace(config.finetune, epochs=math.ceil(longer))


def _placed(model: nn.Module, setting: Setting) -> nn.Module:
    return model.to(setting.accelerator.device)


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


def _plan(
    method: methods.Method, task: methods.Task, setting: Setting, paths: Paths
) -> PruningPlan:
    """Chosen on rank 0, the same everywhere."""
    text = ""
    if setting.accelerator.is_main_process:
        text = method.plan(task).to_json()
        artifact.write_aside(paths.plan, text.encode())
    return task.graph.resolve(PruningPlan.from_json(broadcast_text(text, setting.accelerator)))
