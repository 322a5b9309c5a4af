"""The network that the argument MODEL of a command names."""

import dataclasses
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..files.weights import load_weights
from ..models import build, default_example
from ..network.model_info import ModelInfo, info_of, with_info
from ..runs.loading import load_saved, refuse_onnx
from ..training.run_directory import read_config


def network(
    name: str,
    weights: Path | None,
    shape: str | None,
    classes: int | None,
    width: float,
    *,
    builder: str | None = None,
    trust: bool = False,
) -> tuple[nn.Module, Tensor]:
    """The network in eval mode, and an example input of the given or the usual shape."""
    if is_saved(name):
        refuse_beside(name, weights=weights, classes=classes, width=None if width == 1 else width)
        model = saved_network(Path(name), builder, trust)
        return model, _example(model, name, shape)
    if builder is not None or trust:
        raise ModelError(
            f"--model and --trust are for a saved file; {name!r} is the name of a network itself"
        )
    refuse_path(name)
    find_here(name)
    model = build(name, classes=classes, width=width).eval()
    if weights is not None:
        load_weights(model, weights)
    example = default_example(name, model) if shape is None else example_from(shape)
    arguments = {"classes": classes, "width": None if width == 1 else width}
    given = {key: value for key, value in arguments.items() if value is not None}
    info = ModelInfo(builder=name, arguments=given, input=tuple(example.shape[1:]))
    return with_info(model, _as_timm_says(model, info)), example


def refuse_path(name: str) -> None:
    """Raise if what should be the name of a network looks like a file."""
    refuse_onnx(Path(name))
    if "/" in name and ":" not in name:
        raise ModelError(
            f"there is no run {name}; give the directory of a run, a .safetensors file, or the "
            "name of a network: vgg16, timm:NAME, torchvision:NAME, package.module:function"
        )


def _as_timm_says(model: nn.Module, info: ModelInfo) -> ModelInfo:
    """Add the normalisation and the crop that a network of timm was made for."""
    config = getattr(model, "default_cfg", None)
    if not isinstance(config, Mapping) or not config.get("mean") or not config.get("std"):
        return info
    resize = round(info.input[-1] / (config.get("crop_pct") or 1.0))
    return dataclasses.replace(
        info, mean=tuple(config["mean"]), std=tuple(config["std"]), resize=resize
    )


def is_saved(name: str) -> bool:
    """Whether MODEL is a file that dafp saved, or the directory of a run."""
    return name.endswith(".safetensors") or Path(name).is_dir()


def saved_network(path: Path, builder: str | None, trust: bool) -> nn.Module:
    """The network of a file, or of a run that is finished, in eval mode."""
    find_builder(builder or "", trust)
    if path.is_dir():
        find_here(read_config(path).model)
    return load_saved(path, builder, trust).eval()


def find_builder(name: str, trust: bool) -> None:
    """Add the current directory to the import path if a function may be imported from there."""
    find_here("trusted:file" if trust else name)


def refuse_beside(given: str, **options: object) -> None:
    """Refuse options that describe how to build a network if a file that holds one is given."""
    extra = [f"--{name}" for name, value in options.items() if value is not None]
    if extra:
        raise ModelError(
            f"{given} has its own weights, classes and widths, so {' and '.join(extra)} cannot be "
            "used with it; leave that out, or give the name of a network instead of the file"
        )


def find_here(name: str) -> None:
    """Add the current directory to the import path for package.module:function."""
    library, _, entry = name.partition(":")
    if entry and library not in ("timm", "torchvision") and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _example(model: nn.Module, name: str, shape: str | None) -> Tensor:
    """An example for a saved model: of the shape given, else of the one that its file states."""
    if shape is not None:
        return example_from(shape)
    info = info_of(model)
    if info.input:
        draw = torch.Generator().manual_seed(0)
        return torch.randn(1, *info.input, generator=draw)
    if info.builder:
        return default_example(info.builder, model)
    raise ModelError(f"{name} does not state the shape of its input; give it: --input 1,3,224,224")


def example_from(shape: str) -> Tensor:
    try:
        sizes = [int(size) for size in shape.split(",")]
        if min(sizes) < 1:
            raise ValueError("every size is at least 1")
        return torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"--input {shape!r} is not a shape; write it as 1,3,224,224") from error
