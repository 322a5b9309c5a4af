"""Rejects models and examples that cannot be traced, with an error that says what to do."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter
from torch.utils._pytree import tree_leaves

from ..errors import TraceError
from ..network.named_tensors import modules_of, registered

_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


def check_traceable(model: nn.Module) -> None:
    """Raise TraceError for wrappers and modules that hide the network."""
    if not isinstance(model, nn.Module):
        raise TraceError(f"trace takes an nn.Module, not a {type(model).__name__}")
    name = type(model).__name__
    if name in _WRAPPERS or name.startswith("FSDP"):
        raise TraceError(
            f"the model is wrapped in {name}; give what it wraps, model.module, and wrap the "
            "pruned model again"
        )
    if hasattr(model, "_orig_mod"):
        raise TraceError(
            "the model is compiled by torch.compile; give the original, model._orig_mod, and "
            "compile the pruned model"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise TraceError(
            "the model is a ScriptModule, whose widths are compiled in; give the Python module it "
            "was scripted from"
        )
    _check_parts(model)


def check_example(example: Any) -> None:
    """Raise TraceError for an example without data or without rows."""
    for tensor in tree_leaves(example):
        if isinstance(tensor, Tensor) and tensor.is_meta:
            raise TraceError("the example is on the meta device and has no numbers; give real ones")
        if isinstance(tensor, Tensor) and not tensor.numel():
            raise TraceError(
                f"the example is empty, of shape {list(tensor.shape)}; give at least one row"
            )


def _check_parts(model: nn.Module) -> None:
    for name, tensor in registered(model).items():
        if issubclass(type(tensor), (UninitializedParameter, UninitializedBuffer)):
            raise TraceError(
                f"{name!r} belongs to a lazy module that is not initialised; run the model once "
                "on an example before tracing it"
            )
        if tensor.is_meta:
            raise TraceError(f"{name!r} is on the meta device and has no numbers; load them first")
        if tensor.is_inference():
            raise TraceError(
                f"{name!r} was made under torch.inference_mode and can never be trained; make the "
                "model outside of it"
            )
        if type(tensor).__name__ == "DTensor" or type(tensor.data).__name__ == "DTensor":
            raise TraceError(
                f"{name!r} is a DTensor, split over devices; gather the full model first "
                "(full_tensor()), prune it, and distribute the result"
            )
        if tensor.is_quantized:
            raise TraceError(f"{name!r} is quantised; prune the float model, then quantise it")
    for name, module in modules_of(model):
        if "_orig_mod" in module._modules:
            raise TraceError(
                f"{name!r} is compiled by torch.compile; put the original in its place "
                "(its _orig_mod), and compile it again in the pruned model"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise TraceError(
                f"{name!r} is a ScriptModule, whose widths are compiled in; put the Python module "
                "it was scripted from in its place"
            )
        if ".quantized" in type(module).__module__:
            raise TraceError(
                f"{name!r} is a quantised {type(module).__name__}; prune the float model, then "
                "quantise it"
            )
