"""Save and load models: weights, plan and widths in one .safetensors file, without pickle."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from ..errors import DafpError, FileError, PlanError
from ..graph.plan import PruningPlan
from ..graph.slicing import add_selection, apply_attributes
from ..models import build, is_ours, is_registered
from ..network.fingerprint import fingerprint
from ..network.model_copy import copy_with
from ..network.model_info import ModelInfo, info_from_json, info_of, with_info
from ..network.named_tensors import tensors_of
from ..pruning.pruned_model import PruningRecord
from ..storage.atomic_write import write_atomically

FORMAT = 1
KEY = "dafp"  # one metadata key only: safetensors writes several in random order


def save(
    model: nn.Module,
    path: str | os.PathLike[str],
    *,
    builder: str | None = None,
    arguments: Mapping[str, Any] | None = None,
    input: Sequence[int] | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    resize: int | None = None,
    classes: Sequence[str] | None = None,
) -> None:
    """Write a model, pruned or not, to one .safetensors file.

    The file holds the weights and, for a pruned model, the plan, so that `dafp.load` can restore
    it. It is written to a temporary file and renamed: an interruption leaves no incomplete file.
    Equal models give equal bytes. No pickle is involved. What is not given stays as the model knows
    it, for example from the file that it was loaded from.

    Args:
        model: the network, on any device and in any precision
        path: the file to write; an existing one is replaced
        builder: how to build the network before pruning: a name that `dafp.models.build` takes,
            such as "timm:resnet18" or "mynets:small". Built-in networks know theirs
        arguments: the arguments of the builder, such as {"classes": 3}
        input: shape of one input, without the batch
        mean: mean of pixels in [0, 1] that is subtracted from images
        std: standard deviation that images are divided by
        resize: short edge that images are resized to before the central crop
        classes: names of the classes

    Examples:
        >>> model = dafp.models.build("resnet20", width=0.25)
        >>> dafp.save(model, "model.safetensors")
        >>> loaded = dafp.load("model.safetensors")
        >>> torch.equal(loaded.conv1.weight, model.conv1.weight)
        True
    """
    if not isinstance(model, nn.Module):
        raise FileError(f"save takes an nn.Module, not a {type(model).__name__}")
    given = {
        "builder": builder,
        "arguments": None if arguments is None else dict(arguments),
        "input": None if input is None else list(input),
        "mean": None if mean is None else list(mean),
        "std": None if std is None else list(std),
        "resize": resize,
        "classes": None if classes is None else list(classes),
    }
    known = {key: value for key, value in given.items() if value is not None}
    info = info_from_json({**info_of(model).to_json(), **known}).to_json()
    if info and set(info) <= {"builder", "arguments"} and getattr(model, "_dafp_name", None):
        info = {}  # a built-in network, of which nothing else is known: "model" says it
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
        **({"info": info} if info else {}),
    }
    tensors = _tensors(model, {name for name, _ in record.positions} if record else set())
    header = json.loads(json.dumps(header))
    header["digest"] = digest(header, tensors)
    data = to_bytes(tensors, {KEY: json.dumps(header, sort_keys=True)})
    write_atomically(Path(path), data)


def load(
    path: str | os.PathLike[str], model: nn.Module | None = None, trust: bool = False
) -> nn.Module:
    """Read a model that `dafp.save` wrote.

    Built-in networks and those that timm and torchvision register are built from what the file
    says. A function of your own is imported only with `trust`.

    Args:
        path: the file
        model: an instance of the original, unpruned network; it is copied, not changed
        trust: import and call the function that the file names, if the network is built by one

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
    info = info_from_json(header.get("info", {}))
    if model is None:
        model = _build(header, info, path, trust)
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
    return with_info(loaded, info) if "info" in header else loaded


def _build(
    header: dict[str, Any], info: ModelInfo, path: str | os.PathLike[str], trust: bool
) -> nn.Module:
    """The unpruned network, by its name in the file; nothing else is imported unless trusted."""
    if header["model"]:
        return _build_ours(header["model"], path)
    if not info.builder:
        raise FileError(
            f"{path} holds a {header['class']}, which dafp cannot build by itself; give a "
            "fresh instance: dafp.load(path, model), or on the command line its builder: "
            "--model package.module:function"
        )
    module, _, function = info.builder.partition(":")
    if not trust and not is_registered(info.builder):
        raise FileError(
            f"{path} is built by {function!r} of the module {module!r}, which loading would import "
            "and run. If you trust the file: dafp.load(path, trust=True), or --trust; or name the "
            f"builder yourself: --model {info.builder}"
        )
    odd = sorted(set(info.arguments) - {"classes", "channels", "width"})
    if odd:
        raise FileError(
            f"{path} gives its builder the argument {odd[0]!r}; only classes, channels and width "
            "are passed. Give an instance: dafp.load(path, model)"
        )
    try:
        return build(info.builder, **info.arguments)
    except (DafpError, TypeError) as error:
        raise FileError(f"{path} names a model that cannot be built: {error}") from error


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
