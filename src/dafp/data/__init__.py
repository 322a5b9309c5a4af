"""Data sets by name: `load("cifar10", root=Path("data"))`."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import torch

from ..choices import DATA_SETS as NAMES
from ..errors import DataError
from . import cifar, digits, folders, svhn
from .class_names import CLASS_NAMES
from .dataset import DataSet
from .download import fetch
from .in_memory import Images, Triple
from .randomness import split

__all__ = ["NAMES", "DataSet", "OwnImages", "fetch", "load"]


@dataclass(frozen=True)
class OwnImages:
    """How the images of a directory become inputs of a network."""

    size: int = 0  # edge of the input; 0: 224
    resize: int = 0  # short edge before the crop; 0: 8/7 of the size
    flip: bool = True  # mirror training images at random
    crop: bool = True  # crop training images at random places; else from the centre
    mean: tuple[float, ...] = ()  # of pixels in [0, 1]; empty: measured
    std: tuple[float, ...] = ()
    test_share: float = 0.2  # of each class, if the directory has no test images of its own
    skip_unreadable: bool = False


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
    own: OwnImages | None = None,
) -> DataSet:
    """Load a data set from its files.

    Args:
        name: one of `dafp.data.NAMES`; "digits" is part of dafp and needs no files
        root: the directory of the files
        val_share: share of the training images that become the validation set, the same in each
            class; an image tree with train, val and test keeps its own val
        images: use only this many training images, the same share of each class
        seed: decides which images are chosen; the test set is always complete
        own: how the images of a directory of your own become inputs

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
        own = own or OwnImages()
        return _tree(name, folders.home(name, Path(root)), val_share, images, seed, own)
    return _in_memory(name, Path(root), val_share, images, seed)


def check_name(name: str) -> None:
    """Refuse a name that is not one of NAMES."""
    if name not in NAMES:
        hint = f"; for the directory of this name: folder:{name}" if Path(name).is_dir() else ""
        raise DataError(f"there is no data set {name!r}; choose one of {', '.join(NAMES)}{hint}")


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
    names = CLASS_NAMES.get(name, tuple(str(digit) for digit in range(10)))
    return DataSet(name, len(names), (3, 32, 32), mean, std, flip, _PAD, parts, names)


def _tree(
    name: str, root: Path, val_share: float, images: int | None, seed: int, own: OwnImages
) -> DataSet:
    size = folders.Size(own.size or folders.CROP, own.resize, own.flip, own.crop)
    tree = folders.read(root, size)
    train, val, test = tree.train, tree.val, tree.test
    left_out: tuple[str, ...] = ()
    if name == "folder":
        train = folders.checked(train, own.skip_unreadable)
        val, test = (
            None if part is None else folders.checked(part, own.skip_unreadable)
            for part in (val, test)
        )
        left_out = sum((part.left_out for part in (train, val, test) if part is not None), ())
    if test is None:
        train_places, test_places = split(train.labels, None, own.test_share, seed)
        train, test = train.take(train_places), train.take(test_places)
    # measured on the whole training tree, so that it does not depend on the chosen images
    mean, std = _normalisation(name, train, own)
    train_places, val_places = split(train.labels, images, 0.0 if val else val_share, seed)
    parts = {
        part: dataclasses.replace(files, mean=mean, std=std)
        for part, files in (
            ("train", train.take(train_places)),
            ("val", val or train.take(val_places)),
            ("test", test),
        )
    }
    return DataSet(
        name, len(tree.classes), (3, size.crop, size.crop), mean, std, own.flip, 0, parts,
        tree.classes, size.edge, left_out,
    )  # fmt: skip


def _normalisation(name: str, train: folders.Files, own: OwnImages) -> tuple[Triple, Triple]:
    if len(own.mean) != len(own.std) or len(own.mean) not in (0, 3):
        raise DataError(
            f"mean={list(own.mean)} and std={list(own.std)} are three numbers each, for R, G and "
            "B, or both empty: then they are measured"
        )
    if own.mean:
        return own.mean, own.std  # type: ignore[return-value]
    return _NORMALISATION.get(name) or folders.measure(train)
