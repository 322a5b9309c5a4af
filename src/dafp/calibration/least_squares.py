"""Least squares with damping: weights that give wanted outputs from the inputs that are left."""

from dataclasses import dataclass

import torch
from torch import Tensor

DAMPINGS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # candidates, relative to the mean square of inputs
_CHUNK = 8192  # rows that are converted to float64 at a time


@dataclass(frozen=True)
class Products:
    """Sums over rows of inputs z and goals t, in float64: all that least squares needs."""

    count: int
    z: Tensor  # Σ z
    t: Tensor  # Σ t
    zz: Tensor  # Σ z·zᵀ
    zt: Tensor  # Σ z·tᵀ

    def __add__(self, other: "Products") -> "Products":
        return Products(
            self.count + other.count,
            self.z + other.z,
            self.t + other.t,
            self.zz + other.zz,
            self.zt + other.zt,
        )

    def about(self, centred: bool) -> tuple[Tensor, Tensor]:
        """(zzᵀ, ztᵀ) summed about the means, or about zero."""
        if not centred:
            return self.zz, self.zt
        n = max(1, self.count)
        return self.zz - torch.outer(self.z, self.z) / n, self.zt - torch.outer(self.z, self.t) / n


def products(z: Tensor, t: Tensor) -> Products:
    """Sum the products of all rows. z: rows × inputs, t: rows × outputs."""
    zz = torch.zeros(z.shape[1], z.shape[1], dtype=torch.double, device=z.device)
    zt = torch.zeros(z.shape[1], t.shape[1], dtype=torch.double, device=z.device)
    for start in range(0, len(z), _CHUNK):
        a, b = z[start : start + _CHUNK].double(), t[start : start + _CHUNK].double()
        zz.addmm_(a.T, a)
        zt.addmm_(a.T, b)
    return Products(len(z), z.sum(0, dtype=torch.double), t.sum(0, dtype=torch.double), zz, zt)


def solve(sums: Products, old: Tensor, damping: float, centred: bool) -> Tensor:
    """argmin over W of Σ ‖t − W·z‖² + ε·‖W − old‖², as outputs × inputs.

    ε is `damping` times the mean of Σ z²; with `centred`, z and t are taken about their means.
    """
    zz, zt = sums.about(centred)
    rest = zt - zz @ old.T
    mean = zz.diagonal().mean() if len(zz) else zz.new_zeros(())
    epsilon = damping * mean.clamp(min=1e-30) + 1e-12 * mean.clamp(min=1e-30)
    system = zz + epsilon * torch.eye(len(zz), dtype=zz.dtype, device=zz.device)
    factor, failed = torch.linalg.cholesky_ex(system)
    if int(failed):  # not positive definite by rounding: the next damping will do
        return old
    return old + torch.cholesky_solve(rest, factor).T


def mean_shift(sums: Products, weights: Tensor) -> Tensor:
    """What has to be added to W·z so that its mean is that of the goals."""
    return (sums.t - weights @ sums.z) / max(1, sums.count)
