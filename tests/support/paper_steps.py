"""One real training step of the paper's configurations, on synthetic batches of the right shapes.

`python tests/support/paper_steps.py torchvision` prints those of torchvision's networks as
JSON, for an environment that has it.
"""

import copy
import dataclasses
import json
import math
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dafp
from dafp import methods, reproduce
from dafp.data.dataset import DataSet
from dafp.data.in_memory import Images
from dafp.methods import Task
from dafp.models import build, default_example, is_ours
from dafp.training.config import Config
from dafp.training.loop import make_optimizer

CLASSES = {"cifar10": 10, "cifar100": 100, "svhn": 10, "imagenet": 1000}

Key = tuple[str, int, str]  # network, classes, method


def paper_configs(wanted: Callable[[str], bool] = is_ours) -> dict[Key, Config]:
    """A configuration for each network, number of classes and method of the paper's items."""
    return {
        (figure.config.model, CLASSES[figure.config.data], figure.config.method): figure.config
        for name in reproduce.NAMES
        for row in reproduce.find(name, "paper").rows
        for figure in row.figures
        if wanted(figure.config.model)
    }


def take_step(config: Config) -> dict[str, Any]:
    """Build, trace, prepare and train for one step as the method does, and end the epoch."""
    torch.manual_seed(0)
    method, classes = methods.find(config.method), CLASSES[config.data]
    fresh, example, graph = traced(config.model, classes)
    model = copy.deepcopy(fresh)
    params = sum(p.numel() for p in model.parameters())
    task = Task(model, graph, config, synthetic(config, tuple(example.shape[1:])))
    if method.prepare:
        method.prepare(task)
    optimizer = make_optimizer(model, config, config.sparse.lr)
    hook = method.train(task, optimizer) if method.train else None
    before = [p.detach().clone() for p in model.parameters()]
    model.train()
    loss = cross_entropy(model(torch.cat([example, -example])), torch.tensor([1, 2]))
    loss.backward()
    optimizer.step()
    columns = hook.end_epoch() if hook else {}
    columns = dataclasses.asdict(columns) if dataclasses.is_dataclass(columns) else columns
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    return {
        "params": params, "filters": graph.filters, "finite": math.isfinite(float(loss.detach())),
        "moved": sum(moved) / len(moved), "penalty": columns.get("penalty"),
    }  # fmt: skip


@lru_cache(maxsize=1)  # the configurations of one network follow each other
def traced(name: str, classes: int) -> tuple[nn.Module, Tensor, dafp.ChannelGraph]:
    model = build(name, classes=classes)
    example = default_example(name, model)
    return model, example, dafp.trace(model, example)


def synthetic(config: Config, shape: tuple[int, ...]) -> DataSet:
    """One batch of grey images, for methods that ask how long an epoch is."""
    mean = std = (0.5, 0.5, 0.5)
    pixels = torch.full((1, *shape), 128, dtype=torch.uint8).expand(config.batch_size, *shape)
    part = Images(pixels, torch.ones(config.batch_size, dtype=torch.long), mean, std, 0, False)
    return DataSet("synthetic", CLASSES[config.data], shape, mean, std, False, 0, {"train": part})


if __name__ == "__main__":
    asked = sys.argv[1]
    found = paper_configs(lambda model: model.startswith(f"{asked}:"))
    json.dump([[*key, take_step(found[key])] for key in sorted(found)], sys.stdout)
