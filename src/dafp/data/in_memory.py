"""Images in memory: a batch is cropped, flipped and normalised as one tensor."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import pad as pad_with_zeros

Triple = tuple[float, float, float]


@dataclass(frozen=True, eq=False)
class Images:
    """uint8 pixels N×3×H×W (best in channels_last memory) with labels and normalisation."""

    pixels: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)  # int64
    mean: Triple  # of pixels in [0, 1]
    std: Triple
    pad: int  # zeros around the image before a random crop of the old size
    flip: bool

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, places: Tensor) -> "Images":
        """Some of the images, in the order given."""
        pixels = pick(self.pixels.permute(0, 2, 3, 1), places).permute(0, 3, 1, 2)
        return Images(pixels, self.labels[places], self.mean, self.std, self.pad, self.flip)

    def stream(
        self, batches: Sequence[Tensor], draws: Tensor | None
    ) -> Iterator[tuple[Tensor, Tensor]]:
        """(x, y) for each batch of places; augmented if `draws` (N×3 in [0, 1)) are given."""
        shift, scale = self._normalisation()
        pixels = self.pixels.permute(0, 2, 3, 1)
        for places in batches:
            x = pick(pixels, places)
            if draws is not None:
                x = augment(x, draws[places], self.pad, self.flip)
            whole = x.flatten(1).to(torch.float32).div_(255).sub_(shift).div_(scale)
            yield whole.view(x.shape).permute(0, 3, 1, 2), self.labels[places]

    def _normalisation(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation, repeated for every pixel: long rows vectorise better."""
        pixels = self.pixels.shape[2] * self.pixels.shape[3]
        return (
            torch.tensor(self.mean, device="cpu").repeat(pixels),
            torch.tensor(self.std, device="cpu").repeat(pixels),
        )


def augment(x: Tensor, draws: Tensor, pad: int, flip: bool) -> Tensor:
    """Pad B×H×W×3 with zeros, crop each image at its own place, mirror those with draws < ½.

    The offsets are floor(draws · (2·pad + 1)), downwards and to the right.
    """
    size, height, width, channels = x.shape
    steps = 2 * pad + 1
    down, right = (draws[:, :2] * steps).long().unbind(1)
    image = torch.arange(size, device="cpu")
    if flip:  # mirrored images are appended, so that cropping can come after mirroring
        mirrored = draws[:, 2] < 0.5
        x = torch.cat([x, pick(x, mirrored.nonzero().squeeze(1)).flip(2)])
        image = torch.where(mirrored, size - 1 + mirrored.cumsum(0), image)
        right = torch.where(mirrored, 2 * pad - right, right)
    padded = pad_with_zeros(x, (0, 0, pad, pad, pad, pad))
    line = (width + 2 * pad) * channels
    # a view of every sequence of pixels as long as a row; the rows of all crops are copied at once
    runs = padded.as_strided(
        (max(padded.numel() - width * channels + 1, 0), width * channels), (1, 1)
    )
    first = (image * (height + 2 * pad) + down) * line + right * channels
    rows = first[:, None] + torch.arange(height, device="cpu") * line
    return runs.index_select(0, rows.flatten()).view(size, height, width, channels)


def pick(x: Tensor, places: Tensor) -> Tensor:
    """x[places] by whole rows: index_select on a matrix is faster than indexing by element."""
    return x.flatten(1).index_select(0, places).view(len(places), *x.shape[1:])
