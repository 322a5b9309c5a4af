"""The memory format of a network while it trains."""

import torch
from torch import nn

_BLOCK = 16  # channels that oneDNN takes at once, at most


def supports_channels_last(model: nn.Module) -> bool:
    """Whether this network can be trained in channels_last memory.

    Not if a 1×1 convolution with a stride has fewer input channels than a block: oneDNN, which
    torch uses on a CPU, then writes past its workspace when it computes the gradient of the weights
    (its issue 6035; seen in 3.12). The process dies, or the gradient is wrong.
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
        if weight.dim() == 4:  # a copy: 1×1 weights are in both formats, their strides in one
            weight.data = weight.data.clone(memory_format=torch.contiguous_format)
    return False
