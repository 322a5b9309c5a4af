"""The memory format of a network while it trains."""

import torch
from torch import nn

_BLOCK = 16  # channels that oneDNN takes at once, at most


def bears_channels_last(model: nn.Module) -> bool:
    """Can this network be trained in channels_last memory?

    Not if a 1×1 convolution with a stride reads fewer channels than a block: oneDNN, to which torch
    gives it on a CPU, then writes past its workspace when it computes the gradient of the weights
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
def lay_out(model: nn.Module, channels_last: bool) -> bool:
    """Put the weights into channels_last memory where asked and borne; True if they are now."""
    if channels_last and bears_channels_last(model):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return True
    for weight in model.parameters():
        if weight.dim() == 4:  # a copy: 1×1 weights are in both formats, their strides in one
            weight.data = weight.data.clone(memory_format=torch.contiguous_format)
    return False
