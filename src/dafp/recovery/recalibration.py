"""Estimate BN statistics anew, after channels went or weights changed."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..errors import PlanError
from ..network.calling import batch_of, batches_of, describe, run_on


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Replace the running statistics of every BN by those over `batches`, in place.

    A batch is an input, or an (input, target) pair as data loaders give it. Only BN layers run in
    train mode, so dropout stays off. If a batch fails, or what comes out is not finite, the old
    statistics come back.
    """
    norms = [
        m for m in model.modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.running_mean is not None
    ]  # fmt: skip
    old = [
        (m, m.momentum, {k: b.clone() for k, b in m.named_buffers(recurse=False)}) for m in norms
    ]
    modes = {module: module.training for module in model.modules()}
    model.eval()
    count = 0
    try:
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the plain average over all batches
            norm.train()
        for batch in batches_of(batches, "recalibrate"):
            if batch_of(batch) == 0:
                raise PlanError(
                    f"batch {count} ({describe(batch)}) has no rows; give batches that have some"
                )
            run_on(model, batch, count)
            count += 1
        if count == 0:
            raise PlanError("recalibrate got no batches; give it at least one")
        _refuse_no_numbers(model)
    except BaseException:
        for norm, _, buffers in old:
            for key, value in buffers.items():
                getattr(norm, key).copy_(value)
        raise
    finally:
        for norm, momentum, _ in old:
            norm.momentum = momentum
        for module, mode in modes.items():
            module.training = mode
    return model


def _refuse_no_numbers(model: nn.Module) -> None:
    for name, norm in model.named_modules():
        if not isinstance(norm, nn.modules.batchnorm._BatchNorm):
            continue
        for key, value in norm.named_buffers(recurse=False):
            if not bool(value.isfinite().all()):
                raise PlanError(
                    f"{key} of {name!r} came out with infinite or undefined numbers, so the old "
                    "statistics stay; look for NaN or too large numbers in batches and weights"
                )
