"""Estimate BN statistics anew, after channels went or weights changed."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from .errors import PlanError
from .running import batches_of, run_on


@torch.no_grad()
def recalibrate(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """Replace the running statistics of every BN by those over `batches`, in place.

    A batch is an input, or an (input, target) pair as data loaders give it. Only BN layers run in
    train mode, so dropout stays off. If a batch fails, the old statistics come back.
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
            run_on(model, batch, count)
            count += 1
        if count == 0:
            raise PlanError("recalibrate got no batches; give it at least one")
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
