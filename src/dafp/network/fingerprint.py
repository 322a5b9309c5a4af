"""The fingerprint of an architecture: a hash of names, shapes and types of all its tensors."""

import hashlib

import torch
from torch import nn

from .named_tensors import registered


def fingerprint(model: nn.Module, precision: torch.dtype | None = None) -> str:
    """A hash that is equal for equal architectures, whatever their weights, device or process.

    With `precision`, the fingerprint of the model converted to this floating-point type.
    """
    parts = []
    for name, tensor in registered(model).items():
        dtype = precision if precision and tensor.is_floating_point() else tensor.dtype
        parts.append(f"{name} {tuple(tensor.shape)} {dtype}")
    text = "\n".join([type(model).__qualname__, *sorted(parts)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]
