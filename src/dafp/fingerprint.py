"""Recognise an architecture: names, shapes and types of all its tensors."""

import hashlib

from torch import nn

from .copying import registered
from .errors import PlanError
from .graph import ChannelGraph


def fingerprint(model: nn.Module) -> str:
    """The same for equal architectures, whatever their weights, device or process."""
    parts = [type(model).__qualname__]
    own = registered(model).items()
    parts += sorted(f"{name} {tuple(tensor.shape)} {tensor.dtype}" for name, tensor in own)
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]


def check_same_model(model: nn.Module, graph: ChannelGraph) -> None:
    """Raise unless the graph was traced from this architecture."""
    if fingerprint(model) != graph.fingerprint:
        raise PlanError(
            "the graph was traced from another model: names or shapes of tensors differ. "
            "Trace this model, then make the plan from its own graph"
        )
