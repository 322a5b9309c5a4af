"""Plain weights that dafp did not write: state dicts in .safetensors, .pt or .pth files."""

import os

import torch
from safetensors import safe_open
from torch import Tensor, nn

from ..errors import FileError

_COUNTER = "num_batches_tracked"


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """A state dict from a .safetensors or a .pt/.pth file; nothing in it is executed."""
    try:
        if str(path).endswith(".safetensors"):
            with safe_open(path, framework="pt") as file:
                return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        value = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}") from error
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise FileError(
            f"{path} cannot be read as weights: {why}. Files that hold whole pickled models are "
            "not read; save model.state_dict() instead"
        ) from error
    for key in ("state_dict", "model"):
        if isinstance(value, dict) and isinstance(value.get(key), dict):
            value = value[key]
    if not isinstance(value, dict) or not all(isinstance(v, Tensor) for v in value.values()):
        raise FileError(f"{path} holds no state dict: expected names with tensors")
    return {str(name): tensor for name, tensor in value.items()}


def load_weights(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Load a state dict from a file into a model; FileError, and no change, if it does not fit."""
    weights, wanted = read_weights(path), model.state_dict()
    if not set(weights) & set(wanted):  # saved from a DDP wrapper
        weights = {name.removeprefix("module."): tensor for name, tensor in weights.items()}
    # counters of BN, which old files and converted ones lack: torch forgives them too
    weights = {n: t for n, t in weights.items() if n in wanted or not n.endswith(_COUNTER)}
    for name in wanted.keys() - weights.keys():
        if name.endswith(_COUNTER):
            weights[name] = wanted[name]
    odd = sorted(set(weights) ^ set(wanted))
    if odd:
        side = "the model" if odd[0] in weights else "the file"
        raise FileError(f"{path} does not fit {type(model).__name__}: {side} has no {odd[0]!r}")
    for name, tensor in weights.items():
        if tensor.shape != wanted[name].shape:
            raise FileError(
                f"{path} does not fit {type(model).__name__}: {name!r} is {list(tensor.shape)} in "
                f"the file, {list(wanted[name].shape)} in the model"
            )
    model.load_state_dict(weights)
