"""Images per second of a directory of images, beside a training step: own_images.py [EDGE] [COUNT]

The network has four convolutions (16, 32, 64, 128 channels), each with BN, ReLU and pooling.
"""

import dataclasses
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn.functional import cross_entropy

from dafp.data import DataSet, OwnImages, load

BATCH = 32


def draw(folder: Path, edge: int, count: int) -> None:
    """PNG files of noise, a little larger than the input."""
    random = np.random.default_rng(0)
    for name in ("one", "two"):
        (folder / name).mkdir()
        for number in range(count // 2):
            pixels = random.integers(0, 255, (edge * 9 // 8, edge * 5 // 4, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png", compress_level=1)


def reading(data: DataSet) -> float:
    """Images per second of processor time, augmented, the best of three epochs."""
    rates = []
    for epoch in range(3):
        start = time.process_time()
        seen = sum(len(y) for _, y in data.batches("train", batch_size=BATCH, epoch=epoch))
        rates.append(seen / (time.process_time() - start))
    return max(rates)


def training(data: DataSet, steps: int = 6) -> float:
    """Images per second of processor time of forward, backward and step, without reading."""
    layers: list[nn.Module] = []
    channels = 3
    for width in (16, 32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width)]
        layers += [nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, data.classes)]
    model = nn.Sequential(*layers).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = next(data.batches("train", batch_size=BATCH))
    for step in range(steps + 2):
        if step == 2:  # the first two warm up
            start = time.process_time()
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    return steps * BATCH / (time.process_time() - start)


def main() -> None:
    """Measure with one thread in training; decoding uses threads of its own."""
    torch.set_num_threads(1)
    edge, count = ([int(word) for word in sys.argv[1:]] + [64, 400][len(sys.argv) - 1 :])[:2]
    with tempfile.TemporaryDirectory() as folder:
        draw(Path(folder), edge, count)
        held = load("folder", Path(folder), own=OwnImages(size=edge))
        parts = {name: dataclasses.replace(p, cache=()) for name, p in held.parts.items()}
        decoded = dataclasses.replace(held, parts=parts)
        print(f"{edge} px: {reading(held):,.0f} images/s held in memory, {reading(decoded):,.0f} "
              f"decoded each time, {training(held):,.0f} trained")  # fmt: skip


if __name__ == "__main__":
    main()
