"""Image trees with a directory per class, decoded by threads during training."""

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import DataError
from .in_memory import Triple

EDGE = 256  # images are resized so that their short edge has this length
CROP = 224  # edge of the square crop
AHEAD = 3  # batches decoded in advance
SAMPLE = 256  # images that mean and standard deviation are measured on
SUFFIXES = {".bmp", ".jpeg", ".jpg", ".png", ".webp"}


@dataclass(frozen=True, eq=False)
class Files:
    """Image files with labels and normalisation."""

    paths: tuple[Path, ...] = field(repr=False)
    labels: Tensor = field(repr=False)  # int64
    mean: Triple
    std: Triple

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, places: Tensor) -> "Files":
        """Some of the files, in the order given."""
        paths = tuple(self.paths[place] for place in places.tolist())
        return Files(paths, self.labels[places], self.mean, self.std)

    def stream(
        self, batches: Sequence[Tensor], draws: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(x, y) for each batch of places; augmented if `draws` (N×3 in [0, 1)) are given."""
        waiting: deque[tuple[Tensor, list[Future[np.ndarray]]]] = deque()
        pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
        try:
            for places in batches:
                crops = [pool.submit(self._crop, place, draws) for place in places.tolist()]
                waiting.append((places, crops))
                if len(waiting) > AHEAD:
                    yield self._batch(*waiting.popleft())
            while waiting:
                yield self._batch(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _crop(self, place: int, draws: Tensor | None) -> np.ndarray:
        return crop(decode(self.paths[place]), None if draws is None else draws[place].tolist())

    def _batch(self, places: Tensor, crops: list[Future[np.ndarray]]) -> tuple[Tensor, Tensor]:
        if not crops:
            return torch.empty(0, 3, CROP, CROP, device="cpu"), self.labels[places]
        x = torch.from_numpy(np.stack([future.result() for future in crops]))
        mean, std = torch.tensor(self.mean, device="cpu"), torch.tensor(self.std, device="cpu")
        normal = x.to(torch.float32).div_(255).sub_(mean).div_(std)
        return normal.permute(0, 3, 1, 2), self.labels[places]


def home(name: str, root: Path) -> Path:
    """The directory of an image tree: `root`, or for ImageNet `root`/imagenet if that exists."""
    inner = root / "imagenet"
    return inner if name == "imagenet" and inner.is_dir() else root


def read(root: Path) -> tuple[list[str], Files, Files | None, Files]:
    """Names of the classes, then training, validation (if there is one) and test files.

    With only one of `val` and `test` beside `train`, that one is the test set, as is usual for
    ImageNet. Mean and standard deviation are 0 and 1: they are not measured here.
    """
    if not (root / "train").is_dir():
        raise DataError(
            f"there is no {root / 'train'}; an image tree has train/CLASS/*.jpg, and "
            "val/CLASS/*.jpg or test/CLASS/*.jpg"
        )
    held = [name for name in ("val", "test") if (root / name).is_dir()]
    if not held:
        raise DataError(f"there is neither {root / 'val'} nor {root / 'test'} to test on")
    classes = sorted(path.name for path in (root / "train").iterdir() if _is_class(path))
    if not classes:
        raise DataError(f"{root / 'train'} has no directories, one for each class")
    parts = {name: _files(root / name, classes) for name in ("train", *held)}
    return classes, parts["train"], parts["val"] if len(held) == 2 else None, parts[held[-1]]


def decode(path: Path) -> Image.Image:
    """The image as RGB, resized to a short edge of EDGE."""
    try:
        with Image.open(path) as file:
            image = file.convert("RGB")
    except Exception as error:  # each format of Pillow raises different errors
        raise DataError(f"{path} cannot be decoded: {error}; replace or delete it") from error
    short = min(image.size)
    if short == EDGE:
        return image
    width, height = (max(EDGE, edge * EDGE // short) for edge in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR)


def crop(image: Image.Image, draw: Sequence[float] | None) -> np.ndarray:
    """A CROP×CROP×3 square: from the centre, or at the place given by (down, right, flip)."""
    room_right, room_down = (edge - CROP for edge in image.size)
    if draw is None:
        down, right, mirrored = room_down // 2, room_right // 2, False
    else:
        down, right = int(draw[0] * (room_down + 1)), int(draw[1] * (room_right + 1))
        mirrored = draw[2] < 0.5
    pixels = np.asarray(image)[down : down + CROP, right : right + CROP]
    return pixels[:, ::-1] if mirrored else pixels


def measure(files: Files) -> tuple[Triple, Triple]:
    """Mean and standard deviation of pixels in [0, 1], on at most SAMPLE files, evenly spread."""
    count = min(SAMPLE, len(files))
    total, squares = np.zeros(3), np.zeros(3)
    for number in range(count):
        pixels = crop(decode(files.paths[number * len(files) // count]), None).reshape(-1, 3) / 255
        total += pixels.mean(0)
        squares += (pixels**2).mean(0)
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 1e-4))  # not 0 for images of one colour
    return _triple(mean), _triple(std)


def _triple(values: np.ndarray) -> Triple:
    red, green, blue = (round(float(value), 4) for value in values)
    return red, green, blue


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _files(directory: Path, classes: list[str]) -> Files:
    unknown = sorted({p.name for p in directory.iterdir() if _is_class(p)} - set(classes))
    if unknown:
        raise DataError(
            f"{directory} has a class {unknown[0]!r} that {directory.parent / 'train'} has not"
        )
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(p for p in (directory / name).glob("*") if p.suffix.lower() in SUFFIXES)
        if not found:
            raise DataError(
                f"{directory / name} holds no images ({', '.join(sorted(SUFFIXES))}); every class "
                "needs some, in each part"
            )
        paths += found
        labels += [label] * len(found)
    return Files(tuple(paths), torch.tensor(labels, device="cpu"), (0.0,) * 3, (1.0,) * 3)
