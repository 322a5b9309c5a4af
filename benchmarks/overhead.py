"""How much time do sparse training and the training loop of dafp add?

    python benchmarks/overhead.py            # writes benchmarks/results/overhead.json

step: the same training step with and without SparseTraining, alternating on the same model. The
time that SparseTraining needs to score the network (four times per epoch) is added in proportion.
program: an epoch of dafp's training loop against a minimal hand-written loop on the same network
and images (32×32, with data loading; the minimal loop does not augment), alternating. Checkpoints
and evaluation are left out of both.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import cross_entropy

import dafp
from dafp.data import DataSet
from dafp.data.in_memory import Images
from dafp.models import build
from dafp.training.config import Config
from dafp.training.devices import make_accelerator
from dafp.training.loop import NoProgress, TrainingContext, train_epoch

RESULTS = Path(__file__).parent / "results" / "overhead.json"
BATCH, SCORINGS = 64, 4
PERIOD = 39  # steps between two scorings of the network: 10,000 images, four per epoch


def main() -> None:
    torch.set_num_threads(2)
    rows = {
        "threads": 2,
        "step": {
            f"{name}, {optimizer}": step_ratio(name, width, optimizer)
            for name, width in (("vgg16", 0.25), ("preresnet20", 1.0))
            for optimizer in ("sgd", "adamw")
        },
        "program": {name: program_ratio(name) for name in ("vgg16", "preresnet20")},
    }
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


def step_ratio(name: str, width: float, optimizer: str) -> dict[str, float]:
    """Time of a sparse step, with its share of a scoring, divided by the median plain step.

    Differences are averaged over pairs of turns with opposite order: the speed of the machine
    changes more slowly than that, and the order matters.
    """
    torch.manual_seed(0)
    model = build(name, width=width).to(memory_format=torch.channels_last)
    x = torch.randn(BATCH, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    y = torch.randint(0, 10, (BATCH,))
    plain, with_penalty = (_optimizer(model, optimizer) for _ in range(2))
    graph = dafp.trace(model, x[:1])
    sparse = dafp.SparseTraining(model, graph, with_penalty, epochs=20)
    _step(model, x, y, with_penalty)
    sparse.end_epoch()
    sparse._per_epoch = 4 * PERIOD
    sparse._step = (
        sparse.epochs * sparse._per_epoch // 4
    )  # after a quarter of the training λ is above zero
    first, second = _alternate(
        lambda: _step(model, x, y, plain), lambda: _step(model, x, y, with_penalty),
        SCORINGS * PERIOD,
    )  # fmt: skip
    plain_s = statistics.median(first)
    differences = [b - a for a, b in zip(first, second, strict=True)]
    more = statistics.median(
        (a + b) / 2 for a, b in zip(differences[::2], differences[1::2], strict=True)
    )
    scoring = _median_seconds(lambda: sparse._control(sparse.controller, sparse.scores()))
    return {
        "plain_s": plain_s, "more_s": more, "look_s": scoring,
        "ratio": 1 + (more + scoring / PERIOD) / plain_s,
    }  # fmt: skip


def program_ratio(name: str) -> dict[str, float]:
    """Images per second of dafp's training loop, divided by those of a minimal loop."""
    data = _cifar_size()
    config = Config(model=name, batch_size=BATCH)
    model = build(name, width=0.25).to(memory_format=torch.channels_last)
    optimizer = _optimizer(model, "sgd")
    accelerator = make_accelerator("fp32", "", ".")
    context = TrainingContext(config, data, accelerator, NoProgress())
    wrapped, stepper = accelerator.prepare(model, optimizer)
    images = data.steps("train", BATCH) * BATCH
    part = data.parts["train"]
    assert isinstance(part, Images)
    pixels, labels = part.pixels, part.labels
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (data.mean, data.std))

    def minimal() -> None:
        model.train()
        order = torch.randperm(len(labels))
        for places in order[:images].split(BATCH):  # normalised, not augmented
            x = (pixels[places].float() / 255 - mean) / std
            x = x.contiguous(memory_format=torch.channels_last)
            _step(model, x, labels[places], optimizer)

    def program() -> None:
        train_epoch(wrapped, stepper, context, context.config.baseline, 1, "")

    plain, ours = (statistics.median(seconds) for seconds in _alternate(minimal, program, 8))
    return {"minimal_images_per_s": images / plain, "dafp_images_per_s": images / ours,
            "ratio": plain / ours}  # fmt: skip


def _cifar_size() -> DataSet:
    """2,560 images of noise, padded and flipped as CIFAR-10 is."""
    pixels = torch.randint(0, 256, (2560, 3, 32, 32), dtype=torch.uint8)
    pixels = pixels.contiguous(memory_format=torch.channels_last)
    mean, std = (0.49, 0.48, 0.45), (0.25, 0.24, 0.26)
    part = Images(pixels, torch.arange(2560) % 10, mean, std, pad=4, flip=True)
    return DataSet("noise", 10, (3, 32, 32), mean, std, True, 4, {"train": part})


def _optimizer(model: torch.nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return torch.optim.SGD(model.parameters(), 1e-4, 0.9)
    return torch.optim.AdamW(model.parameters(), 1e-5)


def _step(model: Any, x: Any, y: Any, optimizer: Any) -> None:
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def _alternate(
    first: Callable[[], None], second: Callable[[], None], turns: int
) -> tuple[list[float], list[float]]:
    """Seconds of each, measured alternately after one warm-up of each."""
    first(), second()
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns):
        order = ((0, first), (1, second)) if turn % 2 == 0 else ((1, second), (0, first))
        for place, job in order:
            seconds[place].append(_seconds(job))
    return seconds


def _median_seconds(job: Callable[[], None]) -> float:
    return statistics.median(_seconds(job) for _ in range(9))


def _seconds(job: Callable[[], None]) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
