"""Data sets by name: `load("cifar10", root=Path("data"))`."""

import dataclasses
from pathlib import Path

import torch

from ..choices import DATA_SETS as NAMES
from ..errors import DataError
from . import cifar, digits, folders, svhn
from .dataset import DataSet
from .download import fetch
from .in_memory import Images, Triple
from .randomness import split

__all__ = ["NAMES", "DataSet", "fetch", "load"]

# mean and standard deviation of the training pixels in [0, 1]
_NORMALISATION: dict[str, tuple[Triple, Triple]] = {
    "digits": ((0.3060, 0.3060, 0.3060), (0.3243, 0.3243, 0.3243)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
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
    """Load a data set from its files.

    Args:
        name: one of `dafp.data.NAMES`; "digits" is part of dafp and needs no files
        root: the directory of the files
        val_share: share of the training images that become the validation set, the same in each
            class; an image tree with train, val and test keeps its own val
        images: use only this many training images, the same share of each class
        seed: decides which images are chosen; the test set is always complete

    Returns:
        The training, validation and test images.

    Examples:
        >>> digits = dafp.data.load("digits", images=500)
        >>> digits
        DataSet('digits', 10 classes, images 3×32×32: 450 train, 50 val, 360 test)
        >>> x, y = next(digits.batches("train", batch_size=64))
        >>> x.shape, y.shape
        (torch.Size([64, 3, 32, 32]), torch.Size([64]))
    """
    check_name(name)
    if name in ("folder", "imagenet"):
        return _tree(name, folders.home(name, Path(root)), val_share, images, seed)
    return _in_memory(name, Path(root), val_share, images, seed)


def check_name(name: str) -> None:
    """Refuse a name that is not one of NAMES."""
    if name not in NAMES:
        raise DataError(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}")


def _in_memory(name: str, root: Path, val_share: float, images: int | None, seed: int) -> DataSet:
    if name == "digits":
        train, test = digits.read()
    else:
        train, test = svhn.read(root) if name == "svhn" else cifar.read(name, root)
    mean, std = _NORMALISATION[name]
    flip = name.startswith("cifar")
    whole, held = (
        Images(pixels.contiguous(memory_format=torch.channels_last), labels, mean, std, _PAD, flip)
        for pixels, labels in (train, test)
    )
    train_places, val_places = split(whole.labels, images, val_share, seed)
    parts = {"train": whole.take(train_places), "val": whole.take(val_places), "test": held}
    return DataSet(name, cifar.CLASSES.get(name, 10), (3, 32, 32), mean, std, flip, _PAD, parts)


def _tree(name: str, root: Path, val_share: float, images: int | None, seed: int) -> DataSet:
    classes, train, val, test = folders.read(root)
    # measured on the whole training tree, so that it does not depend on the chosen images
    mean, std = _NORMALISATION.get(name) or folders.measure(train)
    train_places, val_places = split(train.labels, images, 0.0 if val else val_share, seed)
    parts = {
        part: dataclasses.replace(files, mean=mean, std=std)
        for part, files in (
            ("train", train.take(train_places)),
            ("val", val or train.take(val_places)),
            ("test", test),
        )
    }
    shape = (3, folders.CROP, folders.CROP)
    return DataSet(name, len(classes), shape, mean, std, True, 0, parts)
