"""SVHN, cropped digits, in the official .mat files; `extra` is not used."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .sources import find, verify_files


def read(root: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(pixels, labels) of train and of test, as uint8 N×3×32×32 and int64; MD5s are verified."""
    release, _ = find("svhn", root)
    verify_files(release, root)
    train, test = (_part(root / key) for key in release.files)
    return train, test


def _part(path: Path) -> tuple[Tensor, Tensor]:
    """(pixels, labels) of one file: X is 32×32×3×N, y is N×1 with 10 for the digit 0."""
    from scipy.io import loadmat  # noqa: PLC0415 - slow to import, and only SVHN needs it

    try:
        table = loadmat(path, variable_names=("X", "y"))
    except Exception as error:
        raise DataError(f"{path} cannot be read as a .mat file: {error}") from error
    pixels, labels = table.get("X"), table.get("y")
    if pixels is None or labels is None:
        raise DataError(f"{path} does not hold X and y")
    count = labels.size
    if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, count):
        raise DataError(
            f"{path} has images of {pixels.dtype} {pixels.shape} for {count} labels; "
            f"expected uint8 (32, 32, 3, {count})"
        )
    digits = labels.astype(np.int64).reshape(-1)
    if digits.min() < 1 or digits.max() > 10:
        raise DataError(f"{path} has labels outside 1 to 10")
    images = torch.from_numpy(np.ascontiguousarray(pixels.transpose(3, 0, 1, 2)))
    return images.permute(0, 3, 1, 2), torch.from_numpy(digits % 10)
