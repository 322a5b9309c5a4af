"""Fit the weights of one consumer to its goals, and choose how on held-out images."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .least_squares import DAMPINGS, Products, mean_shift, products, solve

MOST_UNKNOWNS = 4096  # of one output: beyond that, only mixtures of channels are fitted


@dataclass(frozen=True)
class Rows:
    """Samples of one weight group of a consumer; rows are places in images."""

    patches: Tensor  # rows × inputs × kernel: what it receives now
    goal: Tensor  # rows × outputs: what it gave in the original, without its bias
    held: Tensor  # which rows are held out
    pixels: Tensor  # rows × inputs: pixels that it receives now
    pixels_before: Tensor  # the same in the original
    pixels_held: Tensor


@dataclass(frozen=True)
class Fit:
    """Weights of one weight group, and how they were found."""

    weights: Tensor  # outputs × inputs × kernel; zero for inputs that are not left
    shift: Tensor  # to be added to the outputs
    how: str  # "patches", "mixture", "mean", or "kept": the old weights were not worse
    damping: float
    error_before: float  # mean square over held-out rows, summed over outputs
    error_after: float


def fit(
    old: Tensor,
    alive: Tensor,
    rows: Rows,
    centred: bool,
    wanted: Tensor,
    only: tuple[str, float] | None = None,
) -> Fit:
    """Fit by patches and by mixtures of channels, with several dampings; the best one is used.

    Patches: every weight of a kept input is free. Mixture: each input of the original is
    replaced by one combination of the kept inputs, at all kernel positions. Errors are compared on
    the held-out rows; the chosen fit is then repeated with all rows.

    old: weights of the original, outputs × inputs × kernel. alive: inputs that are left. centred:
    a bias or BN can take the mean. wanted: outputs that are not pruned themselves. only: the one
    way and damping to compare with the old weights.
    """
    inputs = rows.patches[:, alive].flatten(1)
    start = old[:, alive].flatten(1)
    fitted = products(inputs[~rows.held], rows.goal[~rows.held])
    everything = fitted + products(inputs[rows.held], rows.goal[rows.held])
    checked, goal = inputs[rows.held].double(), rows.goal[rows.held].double()
    none = torch.zeros(len(old), dtype=torch.double)

    def shift(sums: Products, weights: Tensor) -> Tensor:
        return mean_shift(sums, weights) if centred else none

    def error(weights: Tensor, added: Tensor) -> float:
        return float((goal - checked @ weights.T - added).square().mean(0)[wanted].sum())

    by_pixels = products(rows.pixels[~rows.pixels_held][:, alive],
                         rows.pixels_before[~rows.pixels_held])  # fmt: skip
    all_pixels = by_pixels + products(
        rows.pixels[rows.pixels_held][:, alive], rows.pixels_before[rows.pixels_held]
    )
    same = torch.eye(len(alive), dtype=torch.double)[:, alive]

    def mixture(sums: Products, damping: float) -> Tensor:
        mixed = solve(sums, same, damping, centred)  # inputs of the original × kept inputs
        return torch.einsum("oik,ij->ojk", old, mixed).flatten(1)

    ways: dict[str, tuple[Products, Products, Callable[[Products, float], Tensor]]] = {
        "mixture": (by_pixels, all_pixels, mixture)
    }
    if inputs.shape[1] <= MOST_UNKNOWNS and fitted.count >= 2 * inputs.shape[1]:
        ways["patches"] = (
            fitted, everything, lambda sums, damping: solve(sums, start, damping, centred)
        )  # fmt: skip
    before = error(start, none)
    found = [(before, "kept", 0.0)]
    if centred:
        found.append((error(start, shift(fitted, start)), "mean", 0.0))
    for name, (part, _, way) in ways.items():
        for damping in DAMPINGS:
            if only is None or only == (name, damping):
                weights = way(part, damping)
                found.append((error(weights, shift(fitted, weights)), name, damping))
    after, how, damping = min(found)
    chosen = ways[how][2](ways[how][1], damping) if how in ways else start
    weights = torch.zeros_like(old)
    weights[:, alive] = chosen.view(len(old), -1, old.shape[2])
    added = none if how == "kept" else shift(everything, chosen)
    return Fit(weights, added, how, damping, before, after)
