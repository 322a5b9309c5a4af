"""A run: baseline, sparse training, pruning, fine-tuning; its directory holds its whole state."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.optim import Optimizer

from .. import methods
from ..data import DataSet, OwnImages
from ..data import load as load_data
from ..errors import TrainingError
from ..files.weights import load_weights
from ..models import build
from ..selection.amounts import amount
from ..selection.rules import step_of
from ..selection.target_value import Target
from ..selection.targets import reach
from ..selection.width_step import width_step
from ..tracing import trace
from ..training.config import Config
from ..training.devices import make_accelerator
from ..training.loop import (
    NoProgress,
    Progress,
    TrainingContext,
    TrainingHook,
    make_optimizer,
    train_stage,
)
from ..training.memory_format import set_memory_format
from ..training.run_directory import Paths, alone, held, read_result, write_result
from ..training.run_records import RunResult
from .job_hash import stage_hash
from .latency_target import with_share_of_macs
from .prune_and_finetune import prune_and_train
from .run_log import RunLog, machine, versions


def run(
    config: Config, out: Path, progress: Progress | None = None, stages: Path | None = None
) -> RunResult:
    """Run the stages that are not finished yet, and return the result.

    After an interruption, the same call continues where it stopped, and gives the same result. Runs
    with the same directory `stages` train the stages that they have in common only once.
    """
    if config.teacher:
        raise TrainingError(
            f"teacher={config.teacher!r} is for dafp finetune; the teacher of a run is its own "
            "network before pruning"
        )
    return in_directory(config, Paths(out, stages), progress, _stages)


def in_directory(
    config: Config,
    paths: Paths,
    progress: Progress | None,
    work: Callable[[TrainingContext, Paths], RunResult],
) -> RunResult:
    """Call `work` in the locked directory and write its result; an existing result is returned."""
    if config.threads:
        torch.set_num_threads(config.threads)
    accelerator = make_accelerator(config.precision, config.tracker, str(paths.root))
    with held(paths, config, accelerator.is_main_process):
        accelerator.wait_for_everyone()
        if paths.result.exists():
            return read_result(paths.result)
        progress = progress or NoProgress()
        data = open_data(config, progress.say)
        if config.tracker:
            accelerator.init_trackers("dafp")
        context = TrainingContext(config, data, accelerator, progress)
        result = work(context, paths)
        if accelerator.is_main_process:
            write_result(paths, result)
        if config.tracker:
            accelerator.end_training()
        accelerator.wait_for_everyone()
    return result


def _stages(context: TrainingContext, paths: Paths) -> RunResult:
    """Run all stages, one after the other; finished ones are read from their checkpoints."""
    config, classes = context.config, context.data.classes
    method = methods.find(config.method)
    model = make_model(config, classes)
    example = torch.zeros(1, *context.data.shape)
    graph = trace(model, example, residual=config.residual, keep=config.keep)
    task = methods.Task(model, graph, config, context.data)
    _refuse_settings(method, config)
    said = None
    if config.unit == "latency":
        task, share = with_share_of_macs(task, context, paths)
        said = dataclasses.replace(config, target=share, left=0.0)
    elif config.left:
        share = Target(config.unit, left=config.left).share_of(amount(graph, config.unit))
        task = dataclasses.replace(task, config=dataclasses.replace(config, target=share))
    config = task.config
    if config.round_to == "auto" and config.unit != "latency":
        config = dataclasses.replace(config, round_to=_auto_step(task))
        task = dataclasses.replace(task, config=config)
    context = dataclasses.replace(context, config=config)
    run_log = RunLog(dataclasses.replace(context, config=said or config), paths, graph, example)
    _refuse_early(method, task)

    final = config.finetune.epochs if method.finetunes else 0
    baseline = None
    if config.baseline.epochs:
        baseline = make_model(config, classes)
        with _stage_file(context, paths, "baseline") as file:
            rows = train_stage(
                baseline,
                context,
                "baseline",
                config.baseline,
                file,
                publish=run_log.publish,
                later=(config.sparse.epochs if method.train else 0) + final,
            )
        run_log.enter("baseline", baseline, graph.filters, rows)
        run_log.save(baseline, paths.baseline)
        if method.from_baseline or method.train is None:
            model.load_state_dict(baseline.state_dict())
    elif config.weights:
        run_log.enter_given(make_model(config, classes))
    reached = None
    if method.train is not None:
        if method.prepare is not None:
            method.prepare(task)
        make_hook = partial(_make_hook, method, task)
        with _stage_file(context, paths, "sparse") as file:
            rows = train_stage(
                model,
                context,
                "sparse",
                config.sparse,
                file,
                make_hook,
                run_log.publish,
                later=final,
            )
        run_log.enter("sparse", model, graph.filters, rows)
        reached = rows[-1].get("sparsity")

    teacher = model if baseline is None else baseline
    result: RunResult = {
        "model": config.model,
        "data": config.data,
        "method": config.method,
        "seed": config.seed,
        "stages": run_log.stages,
        "versions": versions(),
        "machine": machine(),
    }
    result |= prune_and_train(method, task, run_log, reached, teacher if config.distill else None)
    run_log.time()
    return result


@contextmanager
def _stage_file(context: TrainingContext, paths: Paths, stage: str) -> Iterator[Path]:
    """The checkpoint file of a stage; if runs share it, it is locked while this run trains."""
    file = paths.checkpoint(stage, stage_hash(context.config, stage))
    with alone(file, paths, context.accelerator.is_main_process):
        context.accelerator.wait_for_everyone()
        yield file


def _make_hook(
    method: methods.Method, task: methods.Task, model: nn.Module, optimizer: Optimizer
) -> TrainingHook:
    assert method.train is not None
    return method.train(dataclasses.replace(task, model=model), optimizer)


def _refuse_settings(method: methods.Method, config: Config) -> None:
    """Raise, before anything is measured, if settings do not fit the method."""
    starts_trained = method.train is None or method.from_baseline
    if starts_trained and not config.baseline.epochs and not config.weights:
        raise TrainingError(
            f"{method.name} prunes a trained network: set baseline.epochs, or give weights"
        )
    if config.steps > 1 and method.train is not None:
        raise TrainingError(
            f"steps={config.steps}: {method.name} removes its filters in sparse training, epoch by "
            "epoch, so at its end there is nothing left to do in steps. They are for methods that "
            f"prune a trained network as it is: {', '.join(_one_shot())} (--set method=…)"
        )


def _auto_step(task: methods.Task) -> int:
    config = task.config
    return width_step(task.graph, config.target, config.unit, max(1, config.min_channels))


def _refuse_early(method: methods.Method, task: methods.Task) -> None:
    """Raise, before the baseline is trained, if the target cannot be reached."""
    config = task.config
    most, floors = reach(task.graph, config.unit, **task.floors), widths_text(config)
    if (method.train is None or floors) and config.target > most + 1e-3:
        raise TrainingError(
            f"target={config.target} of {config.unit} cannot be reached: at most {most:.4f} can be "
            f"removed if every layer keeps {floors or 'one channel'}. Ask for less, or, where "
            "residual streams are kept, set residual='couple'"
        )
    if method.train is not None:
        model = make_model(config, task.data.classes)
        method.train(
            dataclasses.replace(task, model=model), make_optimizer(model, config, config.sparse.lr)
        )


def widths_text(config: Config) -> str:
    """The least widths that the configuration allows, in words; "" if that is one channel."""
    found = [f"{config.min_channels} channels"] if config.min_channels > 1 else []
    step = step_of(config.round_to or 1)
    found += [f"a multiple of {step}"] if step > 1 else []
    return " and ".join(found)


def _one_shot() -> list[str]:
    return [name for name, method in methods.METHODS.items() if method.train is None]


def share_of_amount(config: Config, target: Target) -> float:
    """The share to remove so that an amount is left of the network of this configuration."""
    data = open_data(config)
    model = make_model(config, data.classes)
    example = torch.zeros(1, *data.shape, device="cpu")
    graph = trace(model, example, residual=config.residual, keep=config.keep)
    return target.share_of(amount(graph, target.unit))


def open_data(config: Config, say: Callable[[str], None] | None = None) -> DataSet:
    """The data set of a run; `say` is told what images of a directory were found."""
    data = load_data(
        config.data,
        Path(config.root),
        val_share=config.val_share,
        images=config.images or None,
        seed=config.seed,
        own=OwnImages(
            config.size,
            config.resize,
            config.flip,
            config.crop,
            config.mean,
            config.std,
            config.test_share,
            config.skip_unreadable,
        ),
    )
    if say is not None and config.data in ("folder", "imagenet"):
        say(data.sentence())
    return data


def make_model(config: Config, classes: int) -> nn.Module:
    """The network of a run, with weights drawn by the seed or read from a file."""
    torch.manual_seed(config.seed)
    model = build(config.model, classes=classes, width=config.width)
    if config.weights:
        load_weights(model, config.weights)
    set_memory_format(model, config.channels_last)
    return model
