"""Data sets by name: `load("cifar10", root=Path("data"))`."""

from pathlib import Path

import torch
from torch import Tensor

from ..errors import DataError
from . import cifar, digits
from .dataset import DataSet
from .drawing import generator, stratified
from .images import Images, Triple

__all__ = ["NAMES", "DataSet", "load"]

NAMES = ("digits", "cifar10", "cifar100", "svhn", "folder", "imagenet")

# mean and standard deviation of the training pixels in [0, 1]
_NORMALISATION: dict[str, tuple[Triple, Triple]] = {
    "digits": ((0.3060, 0.3060, 0.3060), (0.3243, 0.3243, 0.3243)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
}
_PAD = 4


def load(
    name: str,
    root: Path = Path("data"),
    *,
    val_share: float = 0.1,
    images: int | None = None,
    seed: int = 0,
) -> DataSet:
    """A data set from the files under `root`; `digits` is part of dafp and needs none.

    `images` asks for that many training images only, each class with its share; `val_share` of
    the training images become the validation set, the same way. Both choices depend on `seed`
    alone; the test set is always whole.
    """
    if name not in NAMES:
        raise DataError(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}")
    if not 0 <= val_share < 1:
        raise DataError(f"val_share {val_share} is no share of the training images: 0 to below 1")
    train, test = _read(name, Path(root))
    mean, std = _NORMALISATION[name]
    flip = name.startswith("cifar")
    whole = _images(train, mean, std, flip)
    places = choose(whole.labels, images, val_share, seed)
    return DataSet(
        name=name,
        classes=100 if name == "cifar100" else 10,
        shape=(3, 32, 32),
        mean=mean,
        std=std,
        flip=flip,
        pad=_PAD,
        parts={
            "train": whole.take(places[0]),
            "val": whole.take(places[1]),
            "test": _images(test, mean, std, flip),
        },
    )


def choose(
    labels: Tensor, images: int | None, val_share: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Places of the training and of the validation images."""
    chosen = torch.arange(len(labels), device="cpu")
    if images is not None:
        if not 1 <= images <= len(labels):
            raise DataError(f"images {images}: the training set has {len(labels)}; give 1 to that")
        chosen, _ = stratified(labels, images, generator("subset", seed))
    count = round(val_share * len(chosen))
    val, train = stratified(labels[chosen], count, generator("val", seed))
    if not len(train):
        raise DataError(f"val_share {val_share} of {len(chosen)} images leaves none to train on")
    return chosen[train], chosen[val]


def _read(name: str, root: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    if name == "digits":
        return digits.read()
    if not name.startswith("cifar"):
        raise DataError(f"{name} cannot be read yet")
    return cifar.read(name, root)


def _images(part: tuple[Tensor, Tensor], mean: Triple, std: Triple, flip: bool) -> Images:
    pixels, labels = part
    return Images(
        pixels.contiguous(memory_format=torch.channels_last), labels, mean, std, _PAD, flip
    )
