"""A tiny network, its data and a plain loop, for tests of training."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

import dafp
from dafp.data.dataset import DataSet
from dafp.data.in_memory import Images


def tiny_net(seed: int = 0, widths: tuple[int, int] = (6, 8)) -> nn.Sequential:
    """Two convolutions with BN and a linear layer, for 8×8 images; scales and shifts are random."""
    torch.manual_seed(seed)
    a, b = widths
    net = nn.Sequential(
        nn.Conv2d(3, a, 3, padding=1, bias=False), nn.BatchNorm2d(a), nn.ReLU(),
        nn.Conv2d(a, b, 3, padding=1, bias=False), nn.BatchNorm2d(b), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(b, 4),
    )  # fmt: skip
    for norm in (net[1], net[4]):
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.uniform_(norm.bias, -0.3, 0.3)
    return net


def with_random_bn(model: nn.Module) -> nn.Module:
    """The model with random scales, shifts and statistics: fresh ones hide mistakes."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                for tensor in (module.weight, module.bias, module.running_mean):
                    tensor.copy_(torch.randn(tensor.shape, generator=generator))
                module.running_var.uniform_(0.5, 2, generator=generator)
    return model


def graph_of(net: nn.Module, **options: Any) -> dafp.ChannelGraph:
    return dafp.trace(net, torch.zeros(1, 3, 8, 8), **options)


def images(seed: int = 0, count: int = 64) -> tuple[Tensor, Tensor]:
    """Four classes of noisy images, each brighter in a quarter of its own."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.arange(count) % 4
    x = torch.randn(count, 3, 8, 8, generator=generator)
    for label in range(4):
        row, column = 4 * (label // 2), 4 * (label % 2)
        x[y == label, label % 3, row : row + 4, column : column + 4] += 1.5
    return x, y


def step(net: nn.Module, optimizer: Optimizer, x: Tensor, y: Tensor) -> None:
    optimizer.zero_grad()
    cross_entropy(net(x), y).backward()
    optimizer.step()


def train(
    net: nn.Module, optimizer: Optimizer, sparse: dafp.SparseTraining, epochs: int, steps: int = 8
) -> list[Any]:
    """Epochs of the tiny data in eight batches, or the first few of them."""
    x, y = images()
    records = []
    net.train()
    for _ in range(epochs):
        for part in list(zip(x.chunk(8), y.chunk(8), strict=True))[:steps]:
            step(net, optimizer, *part)
        records.append(sparse.end_epoch())
    return records


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "sgd": lambda net: SGD(net.parameters(), 0.05, 0.9, weight_decay=1e-4),
    "adamw": lambda net: AdamW(net.parameters(), 3e-3),
}


def tiny_data(train: int = 64, val: int = 16, test: int = 37) -> DataSet:
    """The images above as a data set: 8×8, four classes, crops of a padded image."""
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)

    def part(seed: int, count: int) -> Images:
        x, y = images(seed, count)
        pixels = (x * 32 + 128).clamp(0, 255).to(torch.uint8)
        return Images(pixels.contiguous(memory_format=torch.channels_last), y, mean, std, 1, False)

    parts = {"train": part(1, train), "val": part(2, val), "test": part(3, test)}
    return DataSet("tiny", 4, (3, 8, 8), mean, std, False, 1, parts)


def users_net(num_classes: int) -> nn.Module:
    """The model "support.training:users_net" of a run; torch's seed fixes its weights."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.1), nn.Linear(12, num_classes),
    )  # fmt: skip


def wider_net(num_classes: int) -> nn.Sequential:
    """A network with enough channels to meet a target within 5 %."""
    return tiny_net(widths=(16, 24))
