"""Training state in a .safetensors file: nested dicts of tensors and plain numbers, no pickle."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from ..errors import FileError
from ..storage.atomic_write import write_atomically
from .model_file import digest

KEY = "dafp-checkpoint"


def write_checkpoint(path: Path, state: dict[str, Any]) -> None:
    """Write a nested dict (lists and tuples too) of tensors and JSON values, atomically."""
    tensors: dict[str, Tensor] = {}
    header = {"state": _strip(state, "", tensors)}
    header = json.loads(json.dumps(header))
    header["digest"] = digest(header, tensors)
    write_atomically(path, to_bytes(tensors, {KEY: json.dumps(header, sort_keys=True)}))


def read_checkpoint(path: Path) -> dict[str, Any]:
    """Read what `write_checkpoint` wrote; FileError if the file is damaged."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}") from error
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if KEY not in metadata:
                raise FileError(f"{path} is not a checkpoint of dafp")
            header = json.loads(metadata[KEY])
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if not isinstance(header, dict) or header.get("digest") != digest(header, tensors):
            raise FileError(
                f"{path} is damaged: its contents do not have the digest it states. Delete it to "
                "train this stage again"
            )
    except (SafetensorError, ValueError, OSError) as error:
        raise FileError(
            f"{path} cannot be read: {error}; it is damaged. Delete it to train this stage again"
        ) from error
    state: dict[str, Any] = _fill(header["state"], tensors)
    return state


def _strip(value: Any, place: str, tensors: dict[str, Tensor]) -> Any:
    """The same nesting with tensors replaced by references; dict keys keep their type."""
    if isinstance(value, Tensor):
        name = f"{len(tensors)}{place}"  # places may coincide: the keys 1 and "1", "a/b" and a, b
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        items = [[key, _strip(item, f"{place}/{key}", tensors)] for key, item in value.items()]
        return {"dict": items}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_strip(item, f"{place}/{i}", tensors) for i, item in enumerate(value)]}
    return value


def _fill(value: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, inner),) = value.items()
    if kind == "tensor":
        return tensors[inner]
    if kind == "dict":
        return {key: _fill(item, tensors) for key, item in inner}
    items = [_fill(item, tensors) for item in inner]
    return tuple(items) if kind == "tuple" else items


def load_into(module: torch.nn.Module, state: dict[str, Tensor], path: Path) -> None:
    """Load a state dict into a module; FileError if it does not fit."""
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise FileError(f"{path} does not fit the model of this run: {first}") from error
