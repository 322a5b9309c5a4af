"""Image trees with a directory per class, decoded by threads."""

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import DataError
from .in_memory import Triple

CROP = 224  # edge of the square crop, unless another one is asked for
AHEAD = 3  # batches decoded in advance
SAMPLE = 256  # images that mean and standard deviation are measured on
CACHE = 2 * 2**30  # bytes: decoded images are held in memory if they are not larger
LISTED = 10  # unreadable files that a message lists
SUFFIXES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}
S = TypeVar("S")
T = TypeVar("T")


@dataclass(frozen=True)
class Size:
    """How an image becomes the input of a network: its short edge, then a square crop."""

    crop: int = CROP
    resize: int = 0  # short edge; 0: 8/7 of the crop, 256 for 224
    flip: bool = True  # training images are mirrored at random
    random: bool = True  # training images are cropped at random places; else from the centre

    @property
    def edge(self) -> int:
        return self.resize or round(self.crop * 8 / 7)


DEFAULT = Size()


@dataclass(frozen=True, eq=False)
class Files:
    """Image files with labels and normalisation."""

    paths: tuple[Path, ...] = field(repr=False)
    labels: Tensor = field(repr=False)  # int64
    mean: Triple
    std: Triple
    size: Size = DEFAULT
    cache: tuple[np.ndarray, ...] = field(default=(), repr=False)  # decoded; empty: read each time
    left_out: tuple[str, ...] = ()  # why files are missing here

    def __len__(self) -> int:
        return len(self.paths)

    def take(self, places: Tensor) -> "Files":
        """Some of the files, in the order given."""
        chosen = places.tolist()
        paths = tuple(self.paths[place] for place in chosen)
        cache = tuple(self.cache[place] for place in chosen) if self.cache else ()
        return replace(self, paths=paths, labels=self.labels[places], cache=cache)

    def stream(
        self, batches: Sequence[Tensor], draws: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(x, y) for each batch of places; augmented if `draws` (N×3 in [0, 1)) are given."""
        if self.cache:
            for places in batches:
                yield self._batch(places, [self._crop(place, draws) for place in places.tolist()])
            return
        waiting: deque[tuple[Tensor, list[Future[np.ndarray]]]] = deque()
        pool = ThreadPoolExecutor(_threads())
        try:
            for places in batches:
                crops = [pool.submit(self._crop, place, draws) for place in places.tolist()]
                waiting.append((places, crops))
                if len(waiting) > AHEAD:
                    yield self._finished(*waiting.popleft())
            while waiting:
                yield self._finished(*waiting.popleft())
        finally:
            pool.shutdown(cancel_futures=True)

    def _finished(self, places: Tensor, crops: list[Future[np.ndarray]]) -> tuple[Tensor, Tensor]:
        return self._batch(places, [future.result() for future in crops])

    def _crop(self, place: int, draws: Tensor | None) -> np.ndarray:
        draw = None if draws is None else draws[place].tolist()
        image = self.cache[place] if self.cache else decode(self.paths[place], self.size.edge)
        return crop(image, draw, self.size)

    def _batch(self, places: Tensor, crops: list[np.ndarray]) -> tuple[Tensor, Tensor]:
        edge = self.size.crop
        if not crops:
            return torch.empty(0, 3, edge, edge, device="cpu"), self.labels[places]
        x = torch.from_numpy(np.stack(crops))
        mean, std = torch.tensor(self.mean, device="cpu"), torch.tensor(self.std, device="cpu")
        normal = x.to(torch.float32).div_(255).sub_(mean).div_(std)
        return normal.permute(0, 3, 1, 2), self.labels[places]


@dataclass(frozen=True, eq=False)
class Tree:
    """The images of a directory, by the parts that it has."""

    classes: tuple[str, ...]
    train: Files
    val: Files | None
    test: Files | None  # None: the directory has no test images of its own


def home(name: str, root: Path) -> Path:
    """The directory of an image tree: `root`, or for ImageNet `root`/imagenet if that exists."""
    inner = root / "imagenet"
    return inner if name == "imagenet" and inner.is_dir() else root


def read(root: Path, size: Size = DEFAULT) -> Tree:
    """The files of a directory of images.

    Either train/CLASS/… with val/CLASS/… or test/CLASS/… (with only one of the two beside `train`,
    that one is the test set, as is usual for ImageNet), or CLASS/… directly. Below a class,
    directories may be nested. Mean and standard deviation are 0 and 1: they are not measured here.
    """
    if not root.is_dir():
        raise DataError(f"there is no directory {root}")
    split = (root / "train").is_dir()
    top = root / "train" if split else root
    classes = sorted(path.name for path in top.iterdir() if _is_class(path))
    if not classes:
        raise DataError(
            f"{top} has no directories, one for each class; an image tree has CLASS/*.jpg, or "
            "train/CLASS/*.jpg with val/CLASS/*.jpg or test/CLASS/*.jpg"
        )
    if not split and set(classes) <= {"val", "test"}:
        raise DataError(f"{root} has {' and '.join(classes)}, but no train")
    held = [name for name in ("val", "test") if split and (root / name).is_dir()]
    parts = {
        name: _files(root / name if split else root, classes, size) for name in ("train", *held)
    }
    test = parts[held[-1]] if held else None
    return Tree(tuple(classes), parts["train"], parts["val"] if len(held) == 2 else None, test)


def checked(files: Files, skip: bool) -> Files:
    """Decode all files; hold the images in memory if they fit.

    Unreadable files are all listed in one error, or left out if `skip` is set.
    """
    total = 0

    def one(path: Path) -> np.ndarray:
        nonlocal total
        image = decode(path, files.size.edge)
        total += image.nbytes
        return image if total <= CACHE else image[:0]

    images, bad = read_all(files.paths, one)
    if not skip:
        refuse_unreadable(bad, len(files))
    good = [place for place, image in enumerate(images) if image is not None]
    left = files.take(torch.tensor(good, dtype=torch.int64, device="cpu"))
    cache = tuple(image for image in images if image is not None) if total <= CACHE else ()
    return replace(left, cache=cache, left_out=tuple(bad))


def read_all(
    paths: Sequence[Path], read: Callable[[Path], np.ndarray]
) -> tuple[list[np.ndarray | None], list[str]]:
    """Read images by threads: each image, None for one that cannot be decoded, and the errors."""
    bad: list[str] = []

    def one(path: Path) -> np.ndarray | DataError:
        try:
            return read(path)
        except DataError as error:
            return error

    images: list[np.ndarray | None] = []
    for result in _in_threads(one, paths):
        if isinstance(result, DataError):
            bad.append(str(result))
            images.append(None)
        else:
            images.append(result)
    return images, bad


def refuse_unreadable(bad: Sequence[str], count: int) -> None:
    """One error for all images that cannot be decoded."""
    if bad:
        more = f"; and {len(bad) - LISTED} more" if len(bad) > LISTED else ""
        raise DataError(
            f"{len(bad)} of {count} images cannot be decoded: {'; '.join(bad[:LISTED])}{more}"
            ". Replace or delete them, or leave them out: --skip-unreadable"
        )


def decode(path: Path, edge: int = 256) -> np.ndarray:
    """The image as H×W×3 pixels, its short edge resized; transparent parts become white."""
    try:
        with Image.open(path) as file:
            image = _rgb(file)
    except Exception as error:  # each format of Pillow raises different errors
        raise DataError(f"{path} cannot be decoded: {error}") from error
    short = min(image.size)
    if short != edge:
        width, height = (max(edge, side * edge // short) for side in image.size)
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(image)


def _rgb(image: Image.Image) -> Image.Image:
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    if image.mode in ("I", "I;16", "I;16B", "F"):  # more than 8 bits: to the range of 8 bits
        pixels = np.asarray(image, dtype=np.float64)
        top = 65535.0 if image.mode != "F" and pixels.max() > 255 else max(pixels.max(), 1e-9)
        image = Image.fromarray((pixels / top * 255).clip(0, 255).astype(np.uint8))
    return image.convert("RGB")


def crop(image: np.ndarray, draw: Sequence[float] | None, size: Size = DEFAULT) -> np.ndarray:
    """A square: from the centre, or at the place given by (down, right, flip)."""
    room_down, room_right = (edge - size.crop for edge in image.shape[:2])
    down, right = room_down // 2, room_right // 2
    if draw is not None and size.random:
        down, right = int(draw[0] * (room_down + 1)), int(draw[1] * (room_right + 1))
    mirrored = draw is not None and size.flip and draw[2] < 0.5
    pixels = image[down : down + size.crop, right : right + size.crop]
    return pixels[:, ::-1] if mirrored else pixels


def measure(files: Files) -> tuple[Triple, Triple]:
    """Mean and standard deviation of pixels in [0, 1], on at most SAMPLE files, evenly spread."""
    count = min(SAMPLE, len(files))

    def sums(number: int) -> tuple[np.ndarray, np.ndarray]:
        pixels = files._crop(number * len(files) // count, None).reshape(-1, 3) / 255
        return pixels.mean(0), (pixels**2).mean(0)

    total, squares = np.zeros(3), np.zeros(3)
    for mean, square in _in_threads(sums, range(count)):
        total += mean
        squares += square
    mean = total / count
    std = np.sqrt(np.maximum(squares / count - mean**2, 1e-4))  # not 0 for images of one colour
    return _triple(mean), _triple(std)


def _in_threads(work: Callable[[S], T], items: Sequence[S]) -> list[T]:
    with ThreadPoolExecutor(_threads()) as pool:
        return list(pool.map(work, items))


def _threads() -> int:
    return min(8, os.cpu_count() or 1)


def _triple(values: np.ndarray) -> Triple:
    red, green, blue = (round(float(value), 4) for value in values)
    return red, green, blue


def _is_class(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".")


def _files(directory: Path, classes: list[str], size: Size) -> Files:
    unknown = sorted({p.name for p in directory.iterdir() if _is_class(p)} - set(classes))
    if unknown:
        raise DataError(
            f"{directory} has a class {unknown[0]!r} that {directory.parent / 'train'} has not"
        )
    paths: list[Path] = []
    labels: list[int] = []
    for label, name in enumerate(classes):
        found = sorted(
            p
            for p in (directory / name).rglob("*")
            if p.suffix.lower() in SUFFIXES and not p.name.startswith(".")
        )
        if not found:
            raise DataError(
                f"{directory / name} holds no images ({', '.join(sorted(SUFFIXES))}); every class "
                "needs some, in each part"
            )
        paths += found
        labels += [label] * len(found)
    label_tensor = torch.tensor(labels, device="cpu")
    return Files(tuple(paths), label_tensor, (0.0,) * 3, (1.0,) * 3, size)
