"""The memory format of a network while it trains."""

import torch
from torch import nn

_BLOCK = 16  # channels in a block of oneDNN, at most (8 with AVX2, 16 with AVX-512)


def supports_channels_last(model: nn.Module) -> bool:
    """Whether this network can be trained in channels_last memory.

    It cannot if a 1×1 convolution with a stride has fewer input channels than a block: oneDNN,
    which torch uses on a CPU, then writes past its workspace when it computes the gradient of the
    weights (oneDNN issue 6035, seen in 3.12). The process crashes, or the gradient is wrong.
    """
    return not any(
        isinstance(module, nn.Conv2d)
        and module.kernel_size == (1, 1)
        and max(module.stride) > 1
        and module.in_channels // module.groups < _BLOCK
        for module in model.modules()
    )


@torch.no_grad()
def set_memory_format(model: nn.Module, channels_last: bool) -> bool:
    """Use channels_last for the weights if requested and supported; return whether it is used."""
    if channels_last and supports_channels_last(model):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return True
    for weight in model.parameters():
        # A copy, because .contiguous() keeps the strides of 1×1 weights: they fit both formats
        if weight.dim() == 4:
            weight.data = weight.data.clone(memory_format=torch.contiguous_format)
    return False
