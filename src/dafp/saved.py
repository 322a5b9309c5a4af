"""What can be done with a saved model: finetune it, judge it."""

import dataclasses
from pathlib import Path

import torch
from torch import nn

from . import artifact
from .config import Config
from .cost import cost
from .distributed import make_accelerator
from .pipeline import make_model, open_data
from .rundir import Paths, Result, Row, held, read_result, write_metrics, write_result
from .summary import describe, median_latency, versions
from .tracing import trace
from .train import Nobody, Setting, Watcher, evaluate, train_stage


def finetune(config: Config, file: Path, out: Path, watcher: Watcher | None = None) -> Result:
    """Train a saved model, pruned or not, by the finetuning schedule; a run of its own."""
    config = dataclasses.replace(config, weights=str(file))
    paths = Paths(out)
    accelerator = make_accelerator(config.precision, config.tracker, str(out))
    with held(paths, config, accelerator.is_main_process):
        accelerator.wait_for_everyone()
        if paths.result.exists():
            return read_result(paths.result)
        setting = Setting(config, open_data(config), accelerator, watcher or Nobody())
        model = load_model(file, config, setting.data.classes).to(accelerator.device)
        example = torch.zeros(1, *setting.data.shape)
        graph = trace(model, example, residual=config.residual, keep=config.keep)
        accuracy, _ = evaluate(model, setting, "test")
        stages = [describe("given", model, graph.filters, graph, example, [], accuracy)]
        rows = train_stage(
            model, setting, "finetune", config.finetune, paths.checkpoint("finetune")
        )
        stages.append(describe("finetuned", model, graph.filters, graph, example, rows))
        result = {
            "model": config.model, "data": config.data, "method": "finetune",
            "seed": config.seed, "stages": stages, "versions": versions(),
        }  # fmt: skip
        if accelerator.is_main_process:
            write_metrics(paths, rows)
            artifact.save(model.cpu().eval(), paths.model)
            write_result(paths, result)
        accelerator.wait_for_everyone()
    return result


def judge(config: Config, file: Path) -> Row:
    """Accuracy, loss and cost of a saved model on the test images."""
    accelerator = make_accelerator(config.precision, "", ".")
    setting = Setting(config, open_data(config), accelerator, Nobody())
    model = load_model(file, config, setting.data.classes).to(accelerator.device)
    accuracy, loss = evaluate(model, setting, "test")
    example = torch.zeros(1, *setting.data.shape, device=accelerator.device)
    whole = cost(model, example)
    return {
        "file": str(file), "data": config.data, "images": setting.data.sizes["test"],
        "accuracy": accuracy, "loss": loss, "params": whole.params, "macs": whole.macs,
        "latency_s": median_latency(model, example),
    }  # fmt: skip


def load_model(file: Path, config: Config, classes: int) -> nn.Module:
    """A model that dafp saved; one that is not ours is built by `config.model` first."""
    header, _ = artifact.read(file)
    fresh = (
        None if header["model"] else make_model(dataclasses.replace(config, weights=""), classes)
    )
    return artifact.load(file, fresh)
