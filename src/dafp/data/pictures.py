"""Pictures as inputs of a network, resized, cropped and normalised as in training."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .folders import SUFFIXES, Size, crop, decode, read_all


@dataclass(frozen=True)
class Preprocessing:
    """How a picture becomes an input."""

    shape: tuple[int, int, int]  # channels, height, width
    mean: tuple[float, ...]  # of pixels in [0, 1], subtracted
    std: tuple[float, ...]  # divided by
    resize: int = 0  # short edge before the central crop; 0: that of the input


def find_pictures(paths: Sequence[Path]) -> list[Path]:
    """The files, and for a directory all pictures below it, in order."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES)
            if not inside:
                raise DataError(f"{path} holds no images ({', '.join(sorted(SUFFIXES))})")
            found += inside
        elif not path.exists():
            raise DataError(f"there is no image {path}")
        else:
            found.append(path)
    return found


def read_pictures(
    paths: Sequence[Path], how: Preprocessing
) -> tuple[Tensor, list[Path], list[str]]:
    """The pictures as one batch, their paths, and the errors of those that cannot be decoded."""
    channels, height, width = how.shape
    fits = len(how.mean) == len(how.std) and len(how.mean) in (1, channels)
    if channels not in (1, 3) or not fits:
        raise DataError(
            f"images have 1 or 3 channels, with as many means and deviations; the model takes "
            f"{channels}, with mean {list(how.mean)} and std {list(how.std)}"
        )
    edge = how.resize or max(height, width)
    size = Size(max(height, width), edge)

    found, bad = read_all(paths, lambda path: crop(decode(path, edge), None, size))
    pixels = [image for image in found if image is not None]
    readable = [path for path, image in zip(paths, found, strict=True) if image is not None]
    if not pixels:
        return torch.empty(0, *how.shape, device="cpu"), readable, bad
    x = torch.from_numpy(np.stack(pixels)).permute(0, 3, 1, 2).to(torch.float32) / 255
    top, left = (size.crop - height) // 2, (size.crop - width) // 2
    x = x[:, :, top : top + height, left : left + width]
    x = x.mean(1, keepdim=True) if channels == 1 else x
    mean, std = (torch.tensor(v, device="cpu").view(1, -1, 1, 1) for v in (how.mean, how.std))
    return ((x - mean) / std).contiguous(), readable, bad
