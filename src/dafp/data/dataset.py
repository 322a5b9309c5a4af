"""A data set for training: sizes, and batches that depend on their arguments only."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from ..errors import DataError
from . import randomness

CPU = torch.device("cpu")
PARTS = ("train", "val", "test")


class Part(Protocol):
    """Images with labels, in memory or in files."""

    @property
    def labels(self) -> Tensor: ...

    def __len__(self) -> int: ...

    def stream(
        self, batches: Sequence[Tensor], draws: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(x, y) for each batch of places, on the CPU; x is float32, in channels_last memory."""

    def take(self, places: Tensor) -> "Part":
        """A part with these images only."""


@dataclass(frozen=True, eq=False, repr=False)
class DataSet:
    """Training, validation and test images of one data set, made by `load`."""

    name: str
    classes: int
    shape: tuple[int, int, int]  # channels, height, width of the network's input
    mean: tuple[float, float, float]  # of pixels in [0, 1], subtracted
    std: tuple[float, float, float]  # divided by
    flip: bool  # training images are mirrored at random
    pad: int  # zeros around a training image before the random crop
    parts: Mapping[str, Part]
    class_names: tuple[str, ...] = ()
    resize: int = 0  # short edge of an image before the crop; 0: images have the input's size
    left_out: tuple[str, ...] = ()  # the errors of images that could not be decoded

    def __repr__(self) -> str:
        shape = "×".join(map(str, self.shape))
        sizes = ", ".join(f"{size} {name}" for name, size in self.sizes.items())
        return f"DataSet({self.name!r}, {self.classes} classes, images {shape}: {sizes})"

    @property
    def sizes(self) -> dict[str, int]:
        """Number of images in train, val and test."""
        return {name: len(part) for name, part in self.parts.items()}

    def sentence(self) -> str:
        """The parts, the rarest and the most frequent class, and what was left out, in one line."""
        sizes = ", ".join(f"{size:,} {name}" for name, size in self.sizes.items())
        counts = torch.bincount(self.parts["train"].labels, minlength=self.classes)
        shares = [f"{count / max(1, int(counts.sum())):.1%}" for count in counts.tolist()]
        names = list(self.class_names) or [str(n) for n in range(self.classes)]
        rare, often = int(counts.argmin()), int(counts.argmax())
        text = (
            f"images: {sizes}; {self.classes} classes, from {shares[rare]} ({names[rare]}) to "
            f"{shares[often]} ({names[often]}) of the training images, not weighted"
        )
        if not self.left_out:
            return text
        more = f" and {len(self.left_out) - 3} more" if len(self.left_out) > 3 else ""
        return f"{text}; {len(self.left_out)} left out: {'; '.join(self.left_out[:3])}{more}"

    def fewer(self, part: str, images: int) -> "DataSet":
        """A data set with at most `images` images of one part, evenly spaced."""
        whole = self._part(part)
        if len(whole) <= images:
            return self
        places = torch.arange(images) * len(whole) // images
        return replace(self, parts={**self.parts, part: whole.take(places)})

    def steps(self, part: str, batch_size: int) -> int:
        """Number of batches, the same on every rank.

        In training the last, incomplete batch is dropped; in validation and test it is not.
        """
        size = len(self._part(part))
        if batch_size < 1:
            raise DataError(f"batch size {batch_size}: at least 1 is needed")
        if part != "train":
            return -(-size // batch_size)
        if batch_size > size:
            raise DataError(
                f"batch size {batch_size}, but {self.name} has only {size} training images here; "
                "use a smaller batch, or more images"
            )
        return size // batch_size

    def batches(
        self,
        part: str,
        *,
        batch_size: int = 64,
        epoch: int = 0,
        seed: int = 0,
        augment: bool = True,
        rank: int = 0,
        world: int = 1,
        device: torch.device = CPU,
        channels_last: bool = True,
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels of one epoch, a pure function of the arguments.

        `batch_size` is the total over all ranks; each rank gets its part of every batch. Training
        images are shuffled by (seed, epoch), and augmented if `augment`; validation and test images
        come in order, unchanged. In their last batch, the parts of the ranks may differ by one
        image, or be empty.
        """
        steps = self.steps(part, batch_size)
        if not 0 <= rank < world:
            raise DataError(f"rank {rank} of {world}: ranks are 0 to {world - 1}")
        if batch_size % world:
            raise DataError(
                f"batch size {batch_size} cannot be divided among {world} ranks; "
                f"use a multiple of {world}"
            )
        training, images = part == "train", self._part(part)
        places = randomness.order(len(images), shuffle=training, seed=seed, epoch=epoch)
        mine = [
            randomness.share(places[step * batch_size : (step + 1) * batch_size], rank, world)
            for step in range(steps)
        ]
        draws = (
            randomness.draws(len(images), seed=seed, epoch=epoch) if training and augment else None
        )
        return _placed(images.stream(mine, draws), device, channels_last)

    def _part(self, name: str) -> Part:
        if name not in self.parts:
            raise DataError(f"{self.name} has no part {name!r}; there are {', '.join(self.parts)}")
        return self.parts[name]


def _placed(
    batches: Iterator[tuple[Tensor, Tensor]], device: torch.device, channels_last: bool
) -> Iterator[tuple[Tensor, Tensor]]:
    layout = torch.channels_last if channels_last else torch.contiguous_format
    for x, y in batches:
        yield x.to(device).contiguous(memory_format=layout), y.to(device)
