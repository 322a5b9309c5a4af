"""Estimate how long jobs take on this machine; shared stages count once."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from ..errors import TrainingError
from ..files.checkpoint import read_checkpoint
from ..methods import find
from ..models import build
from ..runs.job_hash import stage_hash
from ..sweeps import SweepPaths
from ..training.config import Config
from ..training.loop import make_optimizer
from ..training.memory_format import set_memory_format

# training and test images, and classes
_SIZES = {
    "digits": (1437, 360, 10),
    "cifar10": (50_000, 10_000, 10),
    "cifar100": (50_000, 10_000, 100),
    "svhn": (73_257, 26_032, 10),
    "imagenet": (1_281_167, 50_000, 1000),
}
_STEPS = 3


@dataclass(frozen=True)
class Speed:
    """Measured seconds per image."""

    train: float
    forward: float


@dataclass(frozen=True)
class Estimate:
    """What is left to do, and how long it takes here if one job runs after another."""

    trainings: int
    epochs: int
    seconds_s: float
    epoch_s: dict[str, float]  # measured, by network and data


def estimate(todo: Sequence[Config], paths: SweepPaths) -> Estimate:
    """Estimate the time for the jobs that are left; fine-tuning counts as for the unpruned network.

    A step is measured on a batch of noise, so the data set is not needed.
    """
    speeds: dict[tuple[str, float, str], Speed] = {}
    epoch_s: dict[str, float] = {}
    trainings = epochs = 0
    seconds = 0.0
    for config, count in _trainings(todo, paths):
        key = (config.model, config.width, config.data)
        if key not in speeds:
            speeds[key] = measure(config)
        each = epoch_seconds(config, speeds[key])
        epoch_s[f"{config.model} ×{config.width:g} on {config.data}"] = each
        trainings, epochs = trainings + 1, epochs + count
        seconds += each * count
    return Estimate(trainings, epochs, seconds, epoch_s)


def epoch_seconds(config: Config, speed: Speed) -> float:
    """Seconds of an epoch: training, validation, and testing in about every second epoch."""
    whole, test, _ = _sizes(config)
    images = config.images or whole
    train, val = images * (1 - config.val_share), images * config.val_share
    tested = 0.5 if val else 0.0
    return train * speed.train + (val + tested * test) * speed.forward


def _sizes(config: Config) -> tuple[int, int, int]:
    if config.data not in _SIZES:
        raise TrainingError(
            f"data={config.data!r}: the time can be estimated for {', '.join(_SIZES)} only; "
            "leave --dry-run out"
        )
    return _SIZES[config.data]


def measure(config: Config) -> Speed:
    """Seconds per image of a training step and of a forward pass, the fastest of several steps."""
    size, batch = (224, 4) if config.data == "imagenet" else (32, min(config.batch_size, 32))
    classes = _sizes(config)[2]
    model = build(config.model, classes=classes, width=config.width)
    last = set_memory_format(model, config.channels_last)
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(batch, 3, size, size).contiguous(memory_format=layout)
    y = torch.arange(batch) % classes
    optimizer = make_optimizer(model, config, config.baseline.lr)
    train, forward = [], []
    for _ in range(_STEPS):
        with _as_set(config):
            start = time.perf_counter()
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            middle = time.perf_counter()
            with torch.no_grad():
                model(x)
        train.append(middle - start)
        forward.append(time.perf_counter() - middle)
    return Speed(min(train) / batch, min(forward) / batch)


@contextmanager
def _as_set(config: Config) -> Iterator[None]:
    """Use the threads and the precision of the job within a `with` block."""
    before = torch.get_num_threads()
    torch.set_num_threads(config.threads or before)
    try:
        with torch.autocast("cpu", torch.bfloat16, enabled=config.precision == "bf16"):
            yield
    finally:
        torch.set_num_threads(before)


def _trainings(todo: Sequence[Config], paths: SweepPaths) -> Iterator[tuple[Config, int]]:
    """Every training stage that is left, with its remaining epochs; shared stages only once."""
    seen: set[str] = set()
    for config in todo:
        method = find(config.method)
        stages = [("baseline", config.baseline)] if config.baseline.epochs else []
        stages += [("sparse", config.sparse)] if method.train is not None else []
        for stage, schedule in stages:
            name = stage_hash(config, stage)
            if name not in seen:
                seen.add(name)
                done = _epochs_of(paths.stages / f"{stage}-{name}.checkpoint")
                if done < schedule.epochs:
                    yield config, schedule.epochs - done
        if method.finetunes:
            yield config, config.finetune.epochs


def _epochs_of(file: Path) -> int:
    return int(read_checkpoint(file)["epoch"]) if file.exists() else 0
