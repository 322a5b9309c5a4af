"""Tiny networks on the digits at 8×8, trained with and without penalty, in seconds each.

Shared by `heuristics.py` and `training_settings.py`. The images are the digits of dafp at their
original size. The networks: four convolutions (plain), a stem and three basic blocks (residual), a
stem and three pre-activation bottlenecks (preactivation).
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

import dafp
from dafp.data import load
from dafp.models.preresnet import PreBottleneck

BATCH = 16
MOMENTS = 4  # evaluations per epoch in the last three epochs: on so few images accuracy varies
WARMUP = 0.1  # of AdamW, as a share of all steps
NORMS: dict[str, Callable[[int], nn.Module]] = {
    "batch": nn.BatchNorm2d,
    "group": lambda width: nn.GroupNorm(width // 4, width),
    "instance": lambda width: nn.InstanceNorm2d(width, affine=True),
}


@dataclass(frozen=True)
class Training:
    """One training run."""

    network: str = "plain"  # or "residual", "preactivation"
    norm: str = "batch"  # one of NORMS
    target: float = 0.0  # share of the filters to remove; 0: the same loop without penalty
    epochs: int = 10
    optimizer: str = "sgd"  # or "adamw": with warm-up and cosine
    accumulate: int = 1  # backward passes per optimizer step
    zero_scales: bool = False  # the last γ of each residual block starts at 0
    frozen: bool = False  # BN statistics of five epochs of plain training, fixed from then on
    average: bool = False  # evaluate and prune an exponential moving average of the weights
    width: float = 1.0  # factor on the number of channels
    residual: str = "keep"  # residual streams, as in dafp.trace
    seed: int = 0


@lru_cache
def digits() -> dict[str, tuple[Tensor, Tensor]]:
    """Train and test images of 1×8×8, and labels."""
    data, found = load("digits"), {}
    for part in ("train", "test"):
        batches = list(data.batches(part, batch_size=1, augment=False))
        x = torch.cat([x for x, _ in batches])[:, :1]
        found[part] = (avg_pool2d(x, 4).contiguous(), torch.cat([y for _, y in batches]))
    return found


class Block(nn.Module):
    """BN-ReLU-convolution twice, plus the shortcut."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = norm(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(x + self.norm2(self.conv2(out)))


def build(training: Training) -> nn.Module:
    """The network with fresh weights, drawn by the seed."""
    torch.manual_seed(training.seed)
    norm = NORMS[training.norm]

    def layer(inputs: int, outputs: int, stride: int = 1) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return [conv, norm(outputs), nn.ReLU()]

    few, many = round(32 * training.width), round(64 * training.width)
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(many, 10)]
    if training.network == "plain":
        layers = layer(1, few) + layer(few, few, 2) + layer(few, many) + layer(many, many, 2)
        return nn.Sequential(*layers, *end)
    if training.network == "preactivation":
        bottlenecks = [
            PreBottleneck(few // 2, few // 2, out=many, stride=1),
            PreBottleneck(many, few // 2, out=many, stride=1),
            PreBottleneck(many, few, out=many, stride=2),
        ]
        stem = nn.Conv2d(1, few // 2, 3, padding=1, bias=False)
        return nn.Sequential(stem, *bottlenecks, norm(many), nn.ReLU(), *end)
    blocks = [Block(few, norm), *layer(few, many, 2), Block(many, norm), Block(many, norm)]
    model = nn.Sequential(*layer(1, few), *blocks, *end)
    if training.zero_scales:
        for block in model:
            if isinstance(block, Block):
                nn.init.zeros_(block.norm2.weight)  # type: ignore[arg-type]
    return model


def train(training: Training) -> dict[str, Any]:
    """Train, prune if there is a target, and evaluate; shares of the 360 test images."""
    model, start = build(training), 0
    if training.frozen:
        start = 5
        _epochs(model, SGD(model.parameters(), 0.05, 0.9, weight_decay=1e-4), training, 0, start)
        _freeze(model)
    optimizer, schedule = _optimizer(model, training)
    graph = dafp.trace(model, torch.zeros(2, 1, 8, 8), residual=training.residual)
    sparse = None
    if training.target:
        sparse = dafp.SparseTraining(model, graph, optimizer, training.target, training.epochs)
    average = copy.deepcopy(model) if training.average else None
    found = _epochs(model, optimizer, training, start, training.epochs, sparse, schedule, average)
    row: dict[str, Any] = {"accuracy": round(fmean(found), 5)}
    final = model if average is None else average
    row["recalibrated"] = accuracy(final if training.frozen else recalibrated(final))
    if sparse is not None:
        scores = dafp.criteria.dependency_aware(final, graph)
        row["sparsity"] = round(sparse._share(scores, "filters"), 4)
        plan = dafp.selection.to_target(scores, graph, training.target)
        small = dafp.prune(final.eval(), graph, plan, compensate=True)
        row["pruned"] = accuracy(small)
        row["pruned_recalibrated"] = accuracy(small if training.frozen else recalibrated(small))
        row["fewest"] = min(len(kept) for kept in plan.keep.values())
    return row


def _epochs(
    model: nn.Module,
    optimizer: Optimizer,
    training: Training,
    start: int,
    epochs: int,
    sparse: dafp.SparseTraining | None = None,
    schedule: LambdaLR | None = None,
    average: nn.Module | None = None,
) -> list[float]:
    """Train for some epochs; accuracies within the last three of them."""
    x, y = digits()["train"]
    steps = len(x) // BATCH // training.accumulate * training.accumulate
    at = {steps * n // MOMENTS for n in range(1, MOMENTS + 1)}
    found = []
    for epoch in range(start, start + epochs):
        order = torch.Generator().manual_seed(1000 * training.seed + epoch)
        places = torch.randperm(len(x), generator=order)[: steps * BATCH].view(steps, BATCH)
        for step, batch in enumerate(places, 1):
            model.train(not _is_frozen(model))
            loss = cross_entropy(model(x[batch]), y[batch]) / training.accumulate
            loss.backward()
            if step % training.accumulate == 0:
                optimizer.step()
                optimizer.zero_grad()
                if schedule is not None:
                    schedule.step()
                if average is not None:
                    _follow(average, model)
            if epoch >= start + epochs - 3 and step in at:
                found.append(accuracy(model if average is None else average))
        if sparse is not None:
            sparse.end_epoch()
    return found


def _optimizer(model: nn.Module, training: Training) -> tuple[Optimizer, LambdaLR | None]:
    if training.optimizer == "sgd":
        rate = 0.01 if training.frozen else 0.05
        return SGD(model.parameters(), rate, 0.9, weight_decay=1e-4), None
    steps = training.epochs * (len(digits()["train"][0]) // BATCH // training.accumulate)

    def factor(step: int) -> float:
        done = step / steps
        if done < WARMUP:
            return (step + 1) / (WARMUP * steps)
        return 0.5 + 0.5 * float(torch.cos(torch.tensor(torch.pi * min(1.0, done))))

    optimizer = AdamW(model.parameters(), 3e-3)
    return optimizer, LambdaLR(optimizer, factor)


def _freeze(model: nn.Module) -> None:
    """Fix the BN statistics; scales and shifts are still trained."""
    vars(model)["frozen"] = True
    model.eval()


def _is_frozen(model: nn.Module) -> bool:
    return bool(vars(model).get("frozen", False))


@torch.no_grad()
def _follow(average: nn.Module, model: nn.Module) -> None:
    """Move an average towards the weights of the model; its buffers are those of the model."""
    for mean, now in zip(average.parameters(), model.parameters(), strict=True):
        mean.lerp_(now, 0.02)
    for mean, now in zip(average.buffers(), model.buffers(), strict=True):
        mean.copy_(now)


def recalibrated(model: nn.Module) -> nn.Module:
    """A copy whose BN statistics are recomputed for the current weights."""
    return dafp.recalibrate(copy.deepcopy(model), digits()["train"][0].split(100))


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """The share of the test images that the network classifies correctly."""
    was_training = model.training
    x, y = digits()["test"]
    right = int((model.eval()(x).argmax(1) == y).sum())
    model.train(was_training)
    return round(right / len(y), 5)
