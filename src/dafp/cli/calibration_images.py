"""The option `--data` of `dafp prune`: calibration images, and the accuracy on test images."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..data import DataSet, OwnImages, load
from ..errors import DataError
from ..network.calling import eval_mode
from ..network.model_info import ModelInfo

_BATCH = 200


def calibration_set(
    data: str,
    root: Path,
    mean: str | None,
    std: str | None,
    info: ModelInfo,
    shape: str | None,
    skip_unreadable: bool = False,
) -> DataSet:
    """The data set of `--data`: a name, or folder:DIR.

    It is normalised by the mean and std given, else as the model states it, else in its own way.
    The size of own images is that of the model's input.
    """
    if (mean is None) != (std is None):
        raise DataError("--mean and --std belong together; give both, or neither")
    values = (info.mean, info.std)
    if mean is not None and std is not None:
        values = numbers("--mean", mean), numbers("--std", std)
    name, _, folder = data.partition(":")
    size = int(shape.split(",")[-1]) if shape else (info.input[-1] if info.input else 0)
    own = OwnImages(
        size=size,
        resize=info.resize if size else 0,
        mean=values[0],
        std=values[1],
        skip_unreadable=skip_unreadable,
    )
    found = load(name, Path(folder) if folder else root, val_share=0, own=own)
    if not values[0] or len(values[0]) != len(found.mean):
        return found
    changed: dict[str, Any] = {"mean": values[0], "std": values[1]}
    parts: dict[str, Any] = {
        name: dataclasses.replace(cast(Any, part), **changed) for name, part in found.parts.items()
    }
    return dataclasses.replace(found, parts=parts, **changed)


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


def numbers(option: str, text: str) -> tuple[float, ...]:
    try:
        values = tuple(float(value) for value in text.split(","))
    except ValueError as error:
        raise DataError(
            f"{option} {text!r} is not a list of numbers; write it as 0.485,0.456,0.406"
        ) from error
    if len(values) != 3 or (option == "--std" and min(values) <= 0):
        raise DataError(f"{option} {text!r}: give three numbers, one for each of R, G and B")
    return values
