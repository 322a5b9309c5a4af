"""Compares a pruned network with the masked one, on several inputs and in train mode."""

import contextlib
import copy
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map_only

from dafp.network.calling import FORWARD_ERRORS, call_model, fixed_seed, tensors_in
from dafp.network.decisions import relative_gap
from dafp.pruning.same_decisions import gap_by_decisions

TOLERANCE = 1e-4  # of the largest output, in float32


def gaps(small: nn.Module, masked: nn.Module, inputs: tuple[Any, ...]) -> dict[str, Any]:
    """The largest gap over the inputs that the network takes, and that of train mode.

    A network may refuse other sizes: `inputs` counts those that it took. In train mode nothing is
    dropped out: how many random numbers a dropout draws depends on the number of channels. The gap
    of train mode is None for a network that does not run in it.
    """
    found = [gap for x in inputs if (gap := gap_on(small, masked, x)) is not None]
    train = gap_on(small, masked, inputs[1], training=True)
    gap = max(found, default=float("inf"))
    exact = gap <= TOLERANCE and (train is None or train <= TOLERANCE)
    return {"exact": exact, "gap": gap, "inputs": len(found), "train_gap": train}


def gap_on(small: nn.Module, masked: nn.Module, x: Any, training: bool = False) -> float | None:
    """The gap of the outputs; None if the masked network does not take the input.

    If they differ, they are compared in float64, which excludes rounding, and by the decisions of
    the masked network, for networks whose output depends on thresholds and order.
    """
    try:
        wanted = run(masked, x, training=training)
    except FORWARD_ERRORS:
        return None
    best = gap_of(run(small, x, training=training), wanted)
    for dtype in (None, torch.float64):
        if best <= TOLERANCE:
            break
        with contextlib.suppress(*FORWARD_ERRORS):
            if dtype is not None:
                a, b = (run(m, x, dtype, training=training) for m in (small, masked))
                best = min(best, gap_of(a, b))
        with contextlib.suppress(*FORWARD_ERRORS):
            again = gap_by_decisions(
                small, masked, x, dtype, None, lambda *of: run(*of, training=training), gap_of
            )
            best = best if again is None else min(best, again)
    return best


def run(
    model: nn.Module, x: Any, dtype: torch.dtype | None = None, *, training: bool = False
) -> list[Tensor]:
    """The outputs of a copy, always with the same random state."""
    model = copy.deepcopy(model).train(training)
    for module in model.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
    if dtype is not None:
        model = model.to(dtype)
        x = tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, x)
    attention = partial(_attention, functional.scaled_dot_product_attention)
    with (
        fixed_seed(model),
        torch.no_grad(),
        patch.object(functional, "dropout", _nothing_dropped),
        patch.object(functional, "scaled_dot_product_attention", attention),
    ):
        return tensors_in(call_model(model, x))


def _attention(original: Any, *args: Any, dropout_p: float = 0.0, **kwargs: Any) -> Tensor:
    """Attention of which nothing is dropped; calls name `dropout_p`."""
    found: Tensor = original(*args, **kwargs)
    return found


def _nothing_dropped(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return x


def gap_of(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """The largest relative gap; infinite if the shapes or the integers differ."""
    if [t.shape for t in ours] != [t.shape for t in theirs]:
        return float("inf")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not a.numel():
            continue
        if a.is_floating_point() or a.is_complex():
            worst = max(worst, relative_gap(a, b))
        elif not torch.equal(a, b):
            worst = float("inf")
    return worst
