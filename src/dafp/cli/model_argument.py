"""The network that the argument MODEL of a command names."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from ..files import model_file
from ..files.weights import load_weights
from ..models import build, default_example


def network(
    name: str, weights: Path | None, shape: str | None, classes: int | None, width: float
) -> tuple[nn.Module, Tensor]:
    """The network in eval mode, and an example input of the given or the usual shape."""
    if name.endswith(".safetensors"):
        refuse_beside(name, weights=weights, classes=classes, width=None if width == 1 else width)
        return _pruned(name, shape)
    find_here(name)
    model = build(name, classes=classes, width=width).eval()
    if weights is not None:
        load_weights(model, weights)
    return model, default_example(name, model) if shape is None else example_from(shape)


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


def _pruned(path: str, shape: str | None) -> tuple[nn.Module, Tensor]:
    """A model that dafp saved: a built-in one, since only these are built from a file."""
    model = model_file.load(path).eval()
    known: dict[str, Any] = getattr(model, "_dafp_name", {})
    return model, default_example(known["name"], model) if shape is None else example_from(shape)


def example_from(shape: str) -> Tensor:
    try:
        sizes = [int(size) for size in shape.split(",")]
        if min(sizes) < 1:
            raise ValueError("every size is at least 1")
        return torch.randn(sizes, generator=torch.Generator().manual_seed(0))
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"--input {shape!r} is not a shape; write it as 1,3,224,224") from error
