"""Save and load models: weights, plan and widths in one .safetensors file, without pickle."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from ..errors import DafpError, FileError, PlanError
from ..graph.plan import PruningPlan
from ..graph.slicing import add_selection, apply_attributes
from ..models import build, is_ours
from ..network.fingerprint import fingerprint
from ..network.model_copy import copy_with
from ..network.named_tensors import tensors_of
from ..pruning.pruned_model import PruningRecord
from ..storage.atomic_write import write_atomically

FORMAT = 1
KEY = "dafp"  # one metadata key only: safetensors writes several in random order


def save(model: nn.Module, path: str | os.PathLike[str]) -> None:
    """Write a model, pruned or not, to one .safetensors file.

    The file holds the weights and, for a pruned model, the plan, so that `dafp.load` can restore
    it. It is written to a temporary file and renamed: an interruption leaves no incomplete file.
    Equal models give equal bytes. No pickle is involved.

    Args:
        model: the network, on any device and in any precision
        path: the file to write; an existing one is replaced

    Examples:
        >>> model = dafp.models.build("resnet20", width=0.25)
        >>> dafp.save(model, "model.safetensors")
        >>> loaded = dafp.load("model.safetensors")
        >>> torch.equal(loaded.conv1.weight, model.conv1.weight)
        True
    """
    if not isinstance(model, nn.Module):
        raise FileError(f"save takes an nn.Module, not a {type(model).__name__}")
    record = getattr(model, "_dafp_pruning", None)
    header: dict[str, Any] = {
        "format": FORMAT,
        "class": type(model).__qualname__,
        "model": getattr(model, "_dafp_name", None),
        "fingerprint": fingerprint(model),
        "base": record.base if record else fingerprint(model, torch.float32),
        "plan": record.plan.to_json() if record else None,
        "attributes": record.attributes if record else {},
        "dtype": _dtype(model),
        "selections": list(record.selections) if record else [],
        "channels_last": [n for n, t in model.named_parameters() if _is_channels_last(t)],
    }
    tensors = _tensors(model, {name for name, _ in record.positions} if record else set())
    header = json.loads(json.dumps(header))
    header["digest"] = digest(header, tensors)
    data = to_bytes(tensors, {KEY: json.dumps(header, sort_keys=True)})
    write_atomically(Path(path), data)


def load(path: str | os.PathLike[str], model: nn.Module | None = None) -> nn.Module:
    """Read a model that `dafp.save` wrote.

    Args:
        path: the file
        model: an instance of the original, unpruned network; it is copied, not changed. Not needed
            for networks of `dafp.models.build`

    Returns:
        The network as it was saved, bit for bit, in the same precision, on the CPU.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3))
        >>> graph = dafp.trace(model, torch.randn(1, 3, 8, 8))
        >>> plan = dafp.selection.uniform(dafp.criteria.l1_norm(model, graph), 0.5)
        >>> dafp.save(dafp.prune(model, graph, plan), "small.safetensors")
        >>> dafp.load("small.safetensors", model)[0]
        Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))
    """
    header, tensors = read(path)
    if model is None:
        if not header["model"]:
            raise FileError(
                f"{path} holds a {header['class']}, which dafp cannot build by itself; give a "
                "fresh instance: dafp.load(path, model)"
            )
        model = _build_ours(header["model"], path)
    if not isinstance(model, nn.Module):
        raise FileError(
            f"{path} loads into an instance of {header['class']}, an nn.Module; given was {model!r}"
        )
    if header["base"] != fingerprint(model, torch.float32):
        raise FileError(
            f"{path} was made from another architecture ({header['class']}) than the "
            f"{type(model).__name__} given; give an unpruned instance with the same configuration"
        )
    loaded = _rebuild(model, header, tensors)
    if fingerprint(loaded) != header["fingerprint"]:
        raise FileError(f"{path} is damaged: its tensors do not fit its own header")
    return loaded


def _build_ours(entry: Any, path: str | os.PathLike[str]) -> nn.Module:
    """Build a built-in model only: a file must not be able to import and call anything."""
    known = isinstance(entry, dict) and set(entry) == {"name", "classes", "width"}
    if not known or not isinstance(entry["name"], str) or not is_ours(entry["name"]):
        raise FileError(f"{path} names no model of ours to build; give one: dafp.load(path, model)")
    try:
        return build(**entry)
    except DafpError as error:
        raise FileError(f"{path} names a model that cannot be built: {error}") from error


def read(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file that `save` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if KEY not in metadata:
                raise FileError(
                    f"{path} is a safetensors file, but dafp did not write it; for plain weights "
                    "use --weights, or load_state_dict"
                )
            header = json.loads(metadata[KEY])
            if not isinstance(header, dict):
                raise FileError(f"{path} is damaged: its header is not a JSON object")
            if header.get("format") != FORMAT:
                raise FileError(
                    f"{path} has format {header.get('format')!r}; this version reads {FORMAT}"
                )
            wrong = [k for k, kind in _FIELDS.items() if not isinstance(header.get(k, ...), kind)]
            if wrong:
                raise FileError(f"{path} is damaged: its header has no valid {wrong[0]!r}")
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
        if header["digest"] != digest(header, tensors):
            raise FileError(f"{path} is damaged: its contents do not have the digest it states")
        return header, tensors
    except FileNotFoundError as error:
        raise FileError(f"there is no file {path}") from error
    except (SafetensorError, ValueError, OSError) as error:
        raise FileError(
            f"{path} cannot be read: {error}; it is damaged or no safetensors file"
        ) from error


_FIELDS: dict[str, Any] = {
    "attributes": dict,
    "base": str,
    "channels_last": list,
    "class": str,
    "digest": str,
    "dtype": str,
    "fingerprint": str,
    "model": (dict, type(None)),
    "plan": (str, type(None)),
    "selections": list,
}


def digest(header: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    """SHA-256 of the tensors and of all of the header except the digest itself."""
    rest = {key: value for key, value in header.items() if key != "digest"}
    total = hashlib.sha256(json.dumps(rest, sort_keys=True).encode())
    for name in sorted(tensors):
        total.update(name.encode())
        total.update(to_bytes({"": tensors[name].contiguous()}))
    return total.hexdigest()


def _with_types(model: nn.Module, attributes: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Give each attribute the type that it has in the model: JSON has no tuples."""
    typed: dict[str, dict[str, Any]] = {}
    for name, values in attributes.items():
        module = model.get_submodule(name)
        for attribute, value in values.items():
            old = getattr(module, attribute)
            if isinstance(old, tuple) and isinstance(value, list):
                value = type(old)(value)
            if type(value) is not type(old):
                raise TypeError(f"attribute {attribute!r} of {name!r} cannot become {value!r}")
            typed.setdefault(name, {})[attribute] = value
    return typed


def _tensors(model: nn.Module, sliced: set[str]) -> dict[str, Tensor]:
    """Parameters, buffers, and sliced plain attributes; copied where two of them share memory."""
    own = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]} | sliced
    found: dict[str, Tensor] = {}
    seen: set[int] = set()
    for name, tensor in tensors_of(model).items():
        if name in own:
            value = tensor.detach().cpu().contiguous()
            found[name] = value.clone() if value.data_ptr() in seen else value
            seen.add(value.data_ptr())
    return found


def _dtype(model: nn.Module) -> str:
    """The dtype of the model's weights, only for readers of the header."""
    first = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    return str(first).removeprefix("torch.")


def _is_channels_last(tensor: Tensor) -> bool:
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return last and not tensor.is_contiguous()


def _rebuild(model: nn.Module, header: dict[str, Any], tensors: dict[str, Tensor]) -> nn.Module:
    """A copy of the model with the file's tensors in place of its own."""
    own = {name for name, _ in [*model.named_parameters(), *model.named_buffers()]}
    known = set(tensors_of(model))
    wanted = (known & own) | {f"{name}.index" for name in header["selections"]}
    odd = sorted((wanted - set(tensors)) | (set(tensors) - wanted - known))
    if odd:
        raise FileError(f"the file and the model disagree about tensors: {odd[:4]}")
    for name in header["channels_last"]:
        tensors[name] = tensors[name].contiguous(memory_format=torch.channels_last)
    for name, tensor in tensors_of(model).items():
        if name in tensors and tensors[name].is_floating_point() != tensor.is_floating_point():
            raise FileError(
                f"the file and the model disagree about {name!r}: {tensors[name].dtype} in the "
                f"file, {tensor.dtype} in the model"
            )
    loaded = copy_with(model, lambda name, _: tensors.get(name))
    try:
        apply_attributes(loaded, _with_types(loaded, header["attributes"]))
        for name in header["selections"]:
            add_selection(loaded.get_submodule(name), tensors[f"{name}.index"])
        if header["plan"] is not None:
            plan = PruningPlan.from_json(header["plan"])
            vars(loaded)["_dafp_pruning"] = PruningRecord(
                plan, header["base"], "", {}, header["attributes"], tuple(header["selections"])
            )
    except (AttributeError, PlanError, TypeError) as error:
        raise FileError(f"the file's header is damaged: {error}") from error
    return loaded
