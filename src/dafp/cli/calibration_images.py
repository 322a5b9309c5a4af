"""The option `--data` of `dafp prune`: calibration images, and the accuracy on test images."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..data import DataSet, load
from ..errors import DataError
from ..network.calling import eval_mode

_BATCH = 200


def calibration_set(data: str, root: Path, mean: str | None, std: str | None) -> DataSet:
    """The data set of `--data`: a name, or folder:DIR; with another mean and std if given."""
    name, _, folder = data.partition(":")
    found = load(name, Path(folder) if folder else root, val_share=0)
    if mean is None and std is None:
        return found
    if mean is None or std is None:
        raise DataError("--mean and --std belong together; give both, or neither")
    values: dict[str, Any] = {"mean": _numbers("--mean", mean), "std": _numbers("--std", std)}
    parts: dict[str, Any] = {
        name: dataclasses.replace(cast(Any, part), **values) for name, part in found.parts.items()
    }
    return dataclasses.replace(found, parts=parts, **values)


def calibration_images(data: DataSet, images: int, seed: int = 0) -> list[tuple[Tensor, Tensor]]:
    """Some training images and their labels, not augmented, chosen by the seed."""
    if images < 2:
        raise DataError(f"--images {images}: at least 2 are needed, a few hundred are usual")
    found: list[tuple[Tensor, Tensor]] = []
    left = min(images, data.sizes["train"])
    size = min(_BATCH, left)
    for x, y in data.batches("train", batch_size=size, seed=seed, augment=False):
        found.append((x[:left], y[:left]))
        left -= len(x)
        if left <= 0:
            break
    return found


@torch.no_grad()
def accuracy_on_test(model: nn.Module, data: DataSet) -> float:
    """The share of test images that the model classifies correctly."""
    with eval_mode(model):
        right = [
            (model(x).argmax(1) == y).double() for x, y in data.batches("test", batch_size=_BATCH)
        ]
    return float(torch.cat(right).mean())


def _numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(value) for value in text.split(","))
    except ValueError as error:
        raise DataError(
            f"{option} {text!r} is not a list of numbers; write it as 0.485,0.456,0.406"
        ) from error
    if len(values) != 3 or (option == "--std" and min(values) <= 0):
        raise DataError(f"{option} {text!r}: give three numbers, one for each of R, G and B")
    return values
