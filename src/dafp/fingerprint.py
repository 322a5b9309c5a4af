"""Recognise an architecture: names, shapes and types of all its tensors."""

import hashlib

from torch import nn

from .copying import tensors_of


def fingerprint(model: nn.Module) -> str:
    """The same for equal architectures, whatever their weights, device or process."""
    parts = [type(model).__qualname__]
    parts += [f"{n} {tuple(t.shape)} {t.dtype}" for n, t in sorted(tensors_of(model).items())]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
