"""Count parameters and multiply-adds of a network."""

from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from .copying import tensors_of
from .plan import Cost
from .tracing.passes import batch_of, call_model, example_for, skeleton_of
from .verification import evaluated

__all__ = ["Cost", "cost"]


def cost(model: nn.Module, example: Any) -> Cost:
    """Parameters, and multiply-adds of one forward pass for a batch of 1.

    One multiply-add counts as one; convolutions, linear layers and matrix products count.
    """
    params = sum(t.numel() for t in tensors_of(model).values() if isinstance(t, nn.Parameter))
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    counter = FlopCounterMode(display=False)
    skeleton = skeleton_of(model, fake)
    with evaluated(skeleton), torch.no_grad(), fake, counter:
        call_model(skeleton, example_for(example, fake))
    return Cost(params, counter.get_total_flops() // 2 // batch_of(example))
