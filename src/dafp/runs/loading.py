"""Load saved models: from a file or a run, built by whoever is allowed to build them."""

import dataclasses
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import FileError
from ..files import model_file
from ..models import build, is_ours
from ..network.model_info import ModelInfo, info_from_json
from ..training.run_directory import Paths, read_config
from .pipeline import open_data


def load_saved(
    path: Path, builder: str | None = None, trust: bool = False, classes: int | None = None
) -> nn.Module:
    """Load the model of a file, or the final model of a run.

    The network is built by `builder` if it is given, for a run by the one that its configuration
    names, and otherwise by the one that the file names, which may need `trust`. A builder that is
    given gets the number of classes that the file states, else `classes`, else that of the run.
    """
    file, header, info = _header(path)
    config = read_config(path) if path.is_dir() else None
    if builder is None and config is not None and not is_ours(config.model):
        builder = config.model
    if builder is None or header["model"]:
        return model_file.load(file, trust=trust)
    classes = info.arguments.get("classes", classes)
    if classes is None and config is not None:
        classes = open_data(config).classes
    channels = info.arguments.get("channels") if builder == info.builder else None
    return model_file.load(file, build(builder, classes=classes, channels=channels))


def saved_file(path: Path) -> Path:
    """The file of a saved model: the path itself, or the final model of a run."""
    refuse_onnx(path)
    if not path.exists():
        raise FileError(
            f"there is no file {path}; give a .safetensors file that dafp saved, or the directory "
            "of a run"
        )
    if not path.is_dir():
        return path
    file = Paths(path).model
    if not file.exists():
        raise FileError(f"{path} has no {file.name} yet; finish its run: dafp run --out {path}")
    return file


def refuse_onnx(path: Path) -> None:
    """Raise where a network is needed and an ONNX file was given."""
    if path.suffix == ".onnx":
        raise FileError(
            f"{path} is an ONNX file, which only dafp predict and dafp bench take; give the "
            ".safetensors file or the run that it was exported from"
        )


def is_pruned(path: Path) -> bool:
    """Whether a saved file, or the final model of a run, holds a pruned network."""
    return _header(path)[1]["plan"] is not None


def info_in(path: Path) -> ModelInfo:
    """What a saved file, or the final model of a run, says about its model."""
    return _header(path)[2]


def _header(path: Path) -> tuple[Path, dict[str, Any], ModelInfo]:
    file = saved_file(path)
    header, _ = model_file.read(file)
    info = info_from_json(header.get("info", {}))
    own = header["model"]
    if own and not info.builder:
        info = dataclasses.replace(info, builder=str(own.get("name")))
    return file, header, info
