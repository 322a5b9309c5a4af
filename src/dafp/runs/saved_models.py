"""Fine-tune a saved model, evaluate it, or measure the sensitivity of its layers."""

import dataclasses
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..criteria.table import CRITERIA, score_channels
from ..data import DataSet
from ..errors import DataError, TrainingError
from ..files import model_file
from ..methods import Task
from ..models import is_ours, is_registered
from ..network.calling import eval_mode
from ..network.cost import cost
from ..network.model_info import info_of
from ..recovery.sensitivity import RATIOS, Sensitivity, layer_sensitivity
from ..tracing import trace
from ..training.config import Config
from ..training.devices import make_accelerator
from ..training.loop import NoProgress, Progress, TrainingContext, evaluate, train_stage
from ..training.run_directory import Paths
from ..training.run_records import RunResult
from .loading import info_in, load_saved
from .pipeline import in_directory, make_model, open_data
from .prune_and_finetune import recalibrated
from .run_log import RunLog, machine, speeds, versions


def finetune(
    config: Config,
    file: Path | None,
    out: Path,
    progress: Progress | None = None,
    trust: bool = False,
) -> RunResult:
    """Train a saved model, pruned or not, by the fine-tuning schedule, as a run of its own.

    The model is the one in the file, else `config.model` with `config.weights`. With
    `config.distill`, the model in the file `config.teacher` is the teacher. `trust`: import the
    builders that the files name.
    """
    _refuse(config, file)
    if file is not None:
        config = _with_builder(dataclasses.replace(config, weights=str(file)), file, trust)
    return in_directory(config, Paths(out), progress, partial(_finetune, file=file, trust=trust))


def _with_builder(config: Config, file: Path, trust: bool) -> Config:
    """The configuration with the builder that the file names, unless the caller named one."""
    builder = info_in(file).builder
    if not builder or not is_ours(config.model):
        return config
    if not (trust or is_registered(builder)):
        model_file.load(file)  # raises: the file must not decide what is imported
    return dataclasses.replace(config, model=builder, width=_width(file, config))


def _width(file: Path, config: Config) -> float:
    width = info_in(file).arguments.get("width", 1.0)
    return float(width) if isinstance(width, int | float) else config.width


def _finetune(context: TrainingContext, paths: Paths, file: Path | None, trust: bool) -> RunResult:
    config = context.config
    model = _model(file, config, context.data, trust)
    model.to(context.accelerator.device)
    example = torch.zeros(1, *context.data.shape)
    graph = trace(model, example, residual=config.residual, keep=config.keep)
    teacher = _teacher(config, model, context, trust)
    run_log = RunLog(context, paths, graph, example, history=info_of(model).history)
    accuracy, _ = evaluate(model, context, "test")
    run_log.enter("given", model, graph.filters, [], accuracy)
    if config.recalibrate:
        recalibrated(model, context.data, config)
        accuracy, _ = evaluate(model, context, "test")
        run_log.enter("recalibrated", model, graph.filters, [], accuracy)
    rows = train_stage(
        model,
        context,
        "finetune",
        config.finetune,
        paths.checkpoint("finetune"),
        publish=run_log.publish,
        teacher=teacher,
    )
    run_log.enter("finetuned", model, graph.filters, rows)
    run_log.save(model.cpu().eval(), paths.model)
    run_log.time()
    return {
        "model": config.model,
        "data": config.data,
        "method": "finetune",
        "seed": config.seed,
        "stages": run_log.stages,
        "versions": versions(),
        "machine": machine(),
    }


def _model(file: Path | None, config: Config, data: DataSet, trust: bool) -> nn.Module:
    """The model of a file, else the one of the configuration."""
    return _load(file, config, data, trust) if file else make_model(config, data.classes)


def _load(file: Path, config: Config, data: DataSet, trust: bool) -> nn.Module:
    """The model of a file; a builder of the user's, if the configuration names one, builds it."""
    named = None if is_ours(config.model) else config.model
    return load_saved(file, named, trust, data.classes)


def _refuse(config: Config, file: Path | None) -> None:
    """Raise, before the directory of the run is created, if the configuration cannot work."""
    if config.distill and not config.teacher:
        raise TrainingError(
            f"distill={config.distill} needs a teacher: give the file of the network before "
            "pruning (--distill FILE)"
        )
    if config.steps > 1:
        raise TrainingError(
            f"steps={config.steps}: finetune does not prune; use dafp run --steps {config.steps}"
        )
    files = [file, Path(config.teacher) if config.teacher else None]
    for saved in filter(None, files):
        model_file.read(saved)


def _teacher(
    config: Config, model: nn.Module, context: TrainingContext, trust: bool
) -> nn.Module | None:
    """The teacher of distillation; its outputs must have the shape of the model's."""
    if not config.distill:
        return None
    teacher = _load(Path(config.teacher), config, context.data, trust)
    teacher.to(context.accelerator.device).eval()
    example = torch.zeros(1, *context.data.shape, device=context.accelerator.device)
    with torch.no_grad(), eval_mode(model):
        mine, theirs = model(example).shape[1:], teacher(example).shape[1:]
    if mine != theirs:
        raise TrainingError(
            f"the teacher {config.teacher} answers in {list(theirs)} numbers, the model in "
            f"{list(mine)}; a teacher must have the same classes"
        )
    return teacher


def judge(
    config: Config,
    file: Path | None,
    trust: bool = False,
    say: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Accuracy and loss on the test images, cost and latency.

    The model is the one in the file, else `config.model` with `config.weights`.
    """
    accelerator = make_accelerator(config.precision, "", ".")
    context = TrainingContext(config, open_data(config, say), accelerator, NoProgress())
    model = _model(file, config, context.data, trust).to(accelerator.device)
    accuracy, loss = evaluate(model, context, "test")
    example = torch.zeros(1, *context.data.shape, device=accelerator.device)
    whole, speed = cost(model, example), speeds([model], example, 1)[0]
    return {
        "file": str(file or config.model),
        "data": config.data,
        "images": context.data.sizes["test"],
        "accuracy": accuracy,
        "loss": loss,
        "params": whole.params,
        "macs": whole.macs,
        "latency_s": speed["latency_s"],
        "latency_doubt": speed["doubt"],
    }


def try_layers(
    config: Config,
    file: Path | None,
    images: int,
    progress: Progress | None = None,
    trust: bool = False,
) -> Sensitivity:
    """Accuracy on validation images when one layer alone is pruned, by the configured criterion.

    The model is the one in the file, else `config.model` with `config.weights`. At most `images`
    validation images are used, taken evenly; 0 means all.
    """
    progress = progress or NoProgress()
    data = open_data(config, progress.say)
    if not data.sizes["val"]:
        raise DataError(
            f"{config.data} has no validation images here (val_share={config.val_share}); set "
            "val_share=0.1: what layers need is not read off the test images"
        )
    data = data.fewer("val", images) if images else data
    accelerator = make_accelerator(config.precision, "", ".")
    context = TrainingContext(config, data, accelerator, progress)
    model = _model(file, config, data, trust)
    example = torch.zeros(1, *data.shape)
    graph = trace(model.eval(), example, residual=config.residual, keep=config.keep)
    model.to(accelerator.device)
    batches = None
    if CRITERIA[config.criterion].needs != "nothing":
        batches = Task(model, graph, config, data).calibration_data()
    scores = score_channels(config.criterion, model, graph, batches)
    progress.stage("layers", len(graph.groups), 1)
    found = layer_sensitivity(
        model,
        graph,
        scores,
        lambda net: evaluate(net, context, "val")[0],
        ratios=RATIOS,
        compensate=config.compensate,
        done=progress.step,
    )
    about = {
        "model": config.model if file is None else str(file),
        "data": config.data,
        "images": data.sizes["val"],
        "criterion": config.criterion,
        "compensate": config.compensate,
    }
    return dataclasses.replace(found, about=about)
