"""Gram matrices of the inputs of consumers, measured on calibration data."""

import zlib
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..network.calling import eval_mode, run_on
from .consumers import CalibratedConsumer
from .inputs import CalibrationInputs, first_input

ROWS = 20_000  # sampled patches of each layer, about
MOST_COLUMNS = 2304  # of a Gram matrix over patches: wider layers have one over pixels


@dataclass(frozen=True)
class Gram:
    """Σ z·zᵀ about the mean (or about zero), and the mean, of the inputs of one weight group.

    With `patches`, z has inputs × kernel positions entries; otherwise it is a pixel: one entry per
    input, and the kernel positions are taken to be independent.
    """

    products: Tensor  # float64, divided by the number of rows
    mean: Tensor
    patches: bool


@torch.no_grad()
def gram_matrices(
    model: nn.Module,
    consumers: list[CalibratedConsumer],
    inputs: CalibrationInputs,
    rows: int = ROWS,
    seed: int = 0,
) -> dict[str, tuple[Gram, ...]]:
    """Weight -> the Gram matrix of the inputs of each of its groups, from one pass."""
    sums: dict[str, _Sums] = {}
    per_image = max(1, -(-rows // inputs.images))
    with eval_mode(model), ExitStack() as stack:
        for consumer in consumers:
            layer = model.get_submodule(consumer.module)
            found = sums[consumer.weight] = _Sums(consumer, model, rows)
            hook = layer.register_forward_hook(_hook(found, per_image, seed), with_kwargs=True)
            stack.callback(hook.remove)
        for number, batch in enumerate(inputs.batches):
            run_on(model, batch, number)
    return {name: found.result() for name, found in sums.items() if found.count}


class _Sums:
    """Sums of products of one consumer, added up over batches."""

    def __init__(self, consumer: CalibratedConsumer, model: nn.Module, rows: int) -> None:
        self.consumer, self.map = consumer, consumer.map(model)
        groups, _, inputs, kernel = self.map.matrix().shape
        self.patches = inputs * kernel <= MOST_COLUMNS and rows >= 2 * inputs * kernel
        width = inputs * kernel if self.patches else inputs
        self.zz = torch.zeros(groups, width, width, dtype=torch.double)
        self.z = torch.zeros(groups, width, dtype=torch.double)
        self.count = 0

    def add(self, x: Tensor, output: Tensor, places: Tensor) -> None:
        positions = self.map.positions(output)
        if self.patches:
            z = self.map.patches_at(x, positions, places)
        else:
            z = self.map.pixels_at(x, positions, places).unsqueeze(2)
        rows = z.reshape(len(z), len(self.zz), -1).double()
        if not bool(rows.isfinite().all()):
            raise PlanError(
                f"the input of {self.consumer.module!r} holds NaN or infinity on these batches; "
                "look for too large numbers in batches and weights"
            )
        for group in range(len(self.zz)):
            part = rows[:, group]
            self.zz[group] += (part.T @ part).cpu()
            self.z[group] += part.sum(0).cpu()
        self.count += len(rows)

    def result(self) -> tuple[Gram, ...]:
        mean = self.z / self.count
        zz = self.zz / self.count
        if self.consumer.mean_tensor:
            zz -= mean.unsqueeze(2) * mean.unsqueeze(1)
        return tuple(Gram(zz[g], mean[g], self.patches) for g in range(len(zz)))


def _hook(sums: _Sums, per_image: int, seed: int) -> Callable[..., None]:
    draw = torch.Generator().manual_seed(seed + zlib.crc32(sums.consumer.weight.encode()))

    def hook(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        x = first_input(args, kwargs)
        sums.add(x, output, sums.map.draw_places(output, per_image, draw))

    return hook
