"""What a network that another tool pruned should compute: the original, partly zeroed."""

import copy

import torch
from torch import Tensor, nn

LAYERS = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)


@torch.no_grad()
def masked_like(model: nn.Module, small: nn.Module) -> nn.Module | None:
    """The original model; the input slices of its weights that `small` lost are set to zero.

    The kept input channels of a layer are found by comparing weights, which are equal to those of
    the original. None if they cannot be identified.
    """
    masked = copy.deepcopy(model)
    layers = dict(small.named_modules())
    for name, module in masked.named_modules():
        if not isinstance(module, LAYERS) or name not in layers:
            continue
        old, new = module.weight, layers[name].weight
        if old.shape[1] == new.shape[1]:
            continue
        kept = _columns(old.flatten(2).sum(2) if old.dim() > 2 else old,
                        new.flatten(2).sum(2) if new.dim() > 2 else new)  # fmt: skip
        if kept is None:
            return None
        gone = torch.ones(old.shape[1], dtype=torch.bool)
        gone[kept] = False
        module.weight[:, gone] = 0
    return masked


def _columns(old: Tensor, new: Tensor) -> Tensor | None:
    """The columns of the old matrix that the rows of the new one consist of."""
    for row in new[: min(8, len(new))]:
        for source in old[(old == row[0]).any(1)]:  # rows that contain its first value
            match = source[:, None] == row
            if bool((match.sum(0) == 1).all()):
                return match.float().argmax(0)
    return None
