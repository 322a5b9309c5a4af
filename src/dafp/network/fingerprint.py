"""Recognise an architecture: names, shapes and types of all its tensors."""

import hashlib

import torch
from torch import nn

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph
from .model_copy import registered


def fingerprint(model: nn.Module, precision: torch.dtype | None = None) -> str:
    """The same for equal architectures, whatever their weights, device or process.

    With a precision: that of the same model, had all its floating-point tensors this type.
    """
    parts = []
    for name, tensor in registered(model).items():
        dtype = precision if precision and tensor.is_floating_point() else tensor.dtype
        parts.append(f"{name} {tuple(tensor.shape)} {dtype}")
    text = "\n".join([type(model).__qualname__, *sorted(parts)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def check_same_model(model: nn.Module, graph: ChannelGraph) -> None:
    """Raise unless the graph was traced from this architecture."""
    if not isinstance(model, nn.Module) or not isinstance(graph, ChannelGraph):
        raise PlanError(
            f"expected a model and its graph, not a {type(model).__name__} and a "
            f"{type(graph).__name__}; the graph is what dafp.trace(model, example) returns"
        )
    if fingerprint(model) != graph.fingerprint:
        raise PlanError(
            "the graph was traced from another model: names or shapes of tensors differ. "
            "Trace this model, then make the plan from its own graph"
        )
