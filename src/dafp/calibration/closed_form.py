"""Rebuild the weights of a consumer from the Gram matrix of its inputs alone.

Inputs and goals are both those of the original network: all layers can be rebuilt at once, in any
order, but no layer corrects the errors of the layers before it.
"""

import torch
from torch import Tensor

from .fitting import Fit
from .gram import Gram
from .least_squares import DAMPINGS


def rebuilt_from_gram(
    matrix: Tensor, alive: Tensor, gram: Gram, damping: float
) -> tuple[Tensor, Tensor]:
    """(Weights, shift) of one weight group when only the inputs `alive` are left.

    matrix: outputs × inputs × kernel. The kept columns take over what the removed ones did, as far
    as they vary together: W_k + W_r·H_rk·(H_kk + ε)⁻¹. The shift is what remains of the mean.
    """
    outputs, inputs, kernel = matrix.shape
    if gram.patches:
        columns, old = alive.repeat_interleave(kernel), matrix.flatten(1)
    else:
        columns, old = alive, matrix.permute(0, 2, 1).flatten(0, 1)
    kept = gram.products[columns][:, columns]
    epsilon = damping * kept.diagonal().mean().clamp(min=1e-30)
    system = kept + epsilon * torch.eye(len(kept), dtype=kept.dtype)
    cross = gram.products[columns][:, ~columns] @ old[:, ~columns].T  # kept × outputs
    new = torch.zeros_like(old)
    new[:, columns] = old[:, columns] + torch.cholesky_solve(cross, torch.linalg.cholesky(system)).T
    shift = (old - new) @ gram.mean
    if gram.patches:
        return new.view(outputs, inputs, kernel), shift
    return (
        new.view(outputs, kernel, inputs).permute(0, 2, 1),
        shift.view(outputs, kernel).sum(1),
    )


def fit_from_grams(
    old: Tensor, alive: Tensor, fitted: Gram, held: Gram, centred: bool, wanted: Tensor
) -> Fit:
    """Rebuild from the Gram matrix of some images; the damping is chosen on the held-out ones."""
    none = torch.zeros(len(old), dtype=torch.double)
    zeroed = old * alive[:, None]

    def error(weights: Tensor, added: Tensor) -> float:
        return _error(old - weights, added if centred else none, held, centred, wanted)

    before = error(zeroed, none)
    found = [(before, "kept", 0.0)]
    fits = {damping: rebuilt_from_gram(old, alive, fitted, damping) for damping in DAMPINGS}
    how = "patches" if fitted.patches else "mixture"
    found += [(error(*pair), how, damping) for damping, pair in fits.items()]
    after, how, damping = min(found)
    weights, shift = (zeroed, none) if how == "kept" else fits[damping]
    return Fit(weights, shift if centred else none, how, damping, before, after)


def _error(change: Tensor, shift: Tensor, gram: Gram, centred: bool, wanted: Tensor) -> float:
    """Mean square of what is lost, over the outputs that are wanted."""
    change = change[wanted]
    rows = change.flatten(1) if gram.patches else change.permute(0, 2, 1).flatten(0, 1)
    lost = float((rows @ gram.products * rows).sum())
    if not centred:
        return lost
    means = rows @ gram.mean
    if not gram.patches:
        means = means.view(len(change), -1).sum(1)
    return lost + float((means - shift[wanted]).square().sum())
