"""What sparse training and the training program cost, as ratios in one run.

    python benchmarks/overhead.py            # writes benchmarks/results/overhead.json

step: the same training step with and without SparseTraining, in turns on the same model; to the
median of the sparse steps comes their share of a look at the network (four in an epoch).
program: an epoch of `dafp.train` against a minimal hand-written loop on the same network and
images (32×32, data loading included; the minimal loop does not even augment), in turns;
checkpoints and evaluation are not part of either.
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
from dafp.training.loop import Nobody, Setting, train_epoch

RESULTS = Path(__file__).parent / "results" / "overhead.json"
BATCH, LOOKS = 64, 4
PERIOD = 39  # steps between two looks at the network: 10,000 images, four looks in an epoch


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
    """What a sparse step takes, with its share of a look, over the median of a plain one.

    Two sparse steps are compared with the plain ones before and after them: the machine's moods are
    longer than four steps, and it matters who comes first.
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
    sparse._step = sparse.epochs * sparse._per_epoch // 4  # a quarter of the way: λ is at work
    first, second = _in_turns(
        lambda: _step(model, x, y, plain), lambda: _step(model, x, y, with_penalty),
        LOOKS * PERIOD,
    )  # fmt: skip
    plain_s = statistics.median(first)
    differences = [b - a for a, b in zip(first, second, strict=True)]
    more = statistics.median(
        (a + b) / 2 for a, b in zip(differences[::2], differences[1::2], strict=True)
    )
    look = _median_seconds(lambda: sparse._steer(sparse.scores()))
    return {
        "plain_s": plain_s, "more_s": more, "look_s": look,
        "ratio": 1 + (more + look / PERIOD) / plain_s,
    }  # fmt: skip


def program_ratio(name: str) -> dict[str, float]:
    """Images per second of dafp's epoch over those of a minimal loop on images in memory."""
    data = _cifar_size()
    config = Config(model=name, batch_size=BATCH)
    model = build(name, width=0.25).to(memory_format=torch.channels_last)
    optimizer = _optimizer(model, "sgd")
    accelerator = make_accelerator("fp32", "", ".")
    setting = Setting(config, data, accelerator, Nobody())
    wrapped, stepper = accelerator.prepare(model, optimizer)
    images = data.steps("train", BATCH) * BATCH
    part = data.parts["train"]
    assert isinstance(part, Images)
    pixels, labels = part.pixels, part.labels
    mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (data.mean, data.std))

    def minimal() -> None:
        model.train()
        order = torch.randperm(len(labels))
        for places in order[:images].split(BATCH):  # normalised, but not even augmented
            x = (pixels[places].float() / 255 - mean) / std
            loss = cross_entropy(model(x.contiguous(memory_format=torch.channels_last)),
                                 labels[places])  # fmt: skip
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def program() -> None:
        train_epoch(wrapped, stepper, setting, 1, "")

    plain, ours = (statistics.median(seconds) for seconds in _in_turns(minimal, program, 8))
    return {"minimal_images_per_s": images / plain, "dafp_images_per_s": images / ours,
            "ratio": plain / ours}  # fmt: skip


def _cifar_size() -> DataSet:
    """2,560 images of noise, shown as CIFAR-10 is: what they look like does not matter here."""
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


def _in_turns(
    first: Callable[[], None], second: Callable[[], None], turns: int
) -> tuple[list[float], list[float]]:
    """Seconds of each, measured in turns after one warm-up of each."""
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
