"""Estimate the BN statistics again, after pruning or a change of weights."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ..errors import PlanError
from ..network.calling import batch_of, batches_of, describe, run_on


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Replace the running statistics of every BN with those of `batches`, in place.

    Only BN layers run in train mode, so dropout is off. If a batch fails, or a statistic is not
    finite, the old statistics are restored.

    Args:
        model: the network
        batches: calibration data: inputs, or (input, target) pairs

    Returns:
        The same model.

    Examples:
        >>> model = nn.Sequential(nn.BatchNorm1d(1))
        >>> batches = torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [7.0]])
        >>> _ = dafp.recalibrate(model, batches)
        >>> model[0].running_mean
        tensor([4.])
    """
    norms = [
        module
        for module in model.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is not None
    ]
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
        _check_finite(model)
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


def _check_finite(model: nn.Module) -> None:
    for name, norm in model.named_modules():
        if not isinstance(norm, nn.modules.batchnorm._BatchNorm):
            continue
        for key, value in norm.named_buffers(recurse=False):
            if not bool(value.isfinite().all()):
                raise PlanError(
                    f"{key} of {name!r} came out with infinite or undefined numbers, so the old "
                    "statistics stay; look for NaN or too large numbers in batches and weights"
                )
