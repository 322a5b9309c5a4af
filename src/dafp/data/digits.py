"""The embedded data set: 1797 handwritten digits of 8×8 pixels, shown as 3×32×32.

`digits.csv.gz` is the copy that scikit-learn ships (BSD 3-clause licence) of the test part of
"Optical Recognition of Handwritten Digits" by E. Alpaydin and C. Kaynak, UCI Machine Learning
Repository, 1998, https://doi.org/10.24432/C50P49 (CC BY 4.0). A line holds 64 pixels, 0 to 16, and
the label.
"""

import gzip
from importlib import resources

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from .randomness import generator, stratified

TEST = 360  # a fifth, the same in every run


def read() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(pixels, labels) of train and of test; the split never changes."""
    data = gzip.decompress(resources.files(__package__).joinpath("digits.csv.gz").read_bytes())
    table = torch.from_numpy(np.loadtxt(data.decode().splitlines(), delimiter=",", dtype=np.int64))
    labels = table[:, 64]
    test, train = stratified(labels, TEST, generator("digits"))
    pixels = _enlarge(table[:, :64])
    return (pixels[train], labels[train]), (pixels[test], labels[test])


def _enlarge(flat: Tensor) -> Tensor:
    """N×64 of 0 … 16 to uint8 N×3×32×32, bilinear: every step is exact, on any machine."""
    small = flat.reshape(-1, 1, 8, 8).to(torch.float32)
    large = interpolate(small, size=(32, 32), mode="bilinear", align_corners=False)
    return (large * 255 / 16).round().to(torch.uint8).expand(-1, 3, -1, -1).contiguous()
