"""The work of `dafp predict`: classify images with a saved model or an ONNX file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import typer
from rich.markup import escape
from torch import Tensor

from ..data.folders import refuse_unreadable
from ..data.pictures import Preprocessing, find_pictures, read_pictures
from ..errors import DataError, FileError, ModelError
from ..export.onnx_file import info_in_onnx
from ..extras import need
from ..models import is_registered
from ..network.model_info import ModelInfo, info_of
from .calibration_images import numbers
from .model_argument import is_saved, network, refuse_beside
from .printing import printer, table_of

BATCH = 64


def predict(
    *,
    model: str,
    images: list[Path],
    top: int,
    weights: Path | None,
    shape: str | None,
    classes: int | None,
    width: float,
    mean: str | None,
    std: str | None,
    skip_unreadable: bool,
    builder: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Read the images, run the model on them and print the classes with the highest scores."""
    if model.endswith(".onnx"):
        named = {"weights": weights, "classes": classes, "width": None if width == 1 else width}
        refuse_beside(model, **named, input=shape, model=builder, trust=trust or None)
        run, info = _onnx_model(Path(model))
    else:
        run, info = _torch_model(
            model, weights, shape, classes, width, builder=builder, trust=trust
        )
    how = _preprocessing(model, info, mean, std)
    paths = find_pictures(images)
    rows: list[dict[str, Any]] = []
    bad: list[str] = []
    for start in range(0, len(paths), BATCH):
        x, readable, unreadable = read_pictures(paths[start : start + BATCH], how)
        bad += unreadable
        if readable and (skip_unreadable or not bad):
            rows += _classes(run(x), readable, info.classes, top)
    if not skip_unreadable:
        refuse_unreadable(bad, len(paths))
    elif bad:
        typer.echo(f"{len(bad)} of {len(paths)} images left out: {'; '.join(bad)}", err=True)
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = table_of(model, ["image", "class"], ["share"])
    for row in rows:
        for place, found in enumerate(row["top"]):
            name = row["image"] if place == 0 else ""
            table.add_row(escape(name), escape(found["class"]), f"{found['probability']:.1%}")
    printer().print(table)


Run = Callable[[Tensor], Tensor]


def _torch_model(
    name: str,
    weights: Path | None,
    shape: str | None,
    classes: int | None,
    width: float,
    *,
    builder: str | None,
    trust: bool,
) -> tuple[Run, ModelInfo]:
    """A function from a batch to logits, and what is known about the inputs of the model."""
    if weights is None and not is_saved(name) and is_registered(name):
        raise ModelError(
            f"{name} without --weights has random weights, which predict nothing; give the file of "
            "its weights, a .safetensors or .onnx file that dafp wrote, or the directory of a run"
        )
    net, _ = network(name, weights, shape, classes, width, builder=builder, trust=trust)

    @torch.no_grad()
    def run(x: Tensor) -> Tensor:
        logits: Tensor = net(x)
        return logits

    return run, info_of(net)


def _onnx_model(path: Path) -> tuple[Run, ModelInfo]:
    runtime = need("onnxruntime", "onnx", "predictions of an ONNX file")
    if not path.is_file():
        raise FileError(f"there is no file {path}")
    try:
        session: Any = runtime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has error types of its own
        raise FileError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
    info = info_in_onnx(session.get_modelmeta().custom_metadata_map, path)
    name = session.get_inputs()[0].name

    def run(x: Tensor) -> Tensor:
        return torch.from_numpy(session.run(None, {name: x.numpy()})[0])

    return run, info


def _preprocessing(name: str, info: ModelInfo, mean: str | None, std: str | None) -> Preprocessing:
    if (mean is None) != (std is None):
        raise DataError("--mean and --std belong together; give both, or neither")
    if len(info.input) != 3:
        raise DataError(
            f"{name} does not state that it takes images; a model that `dafp run` or `dafp prune "
            "--data` wrote does, or dafp.save(model, path, input=(3, 224, 224), mean=…, std=…)"
        )
    if mean is not None and std is not None:
        info_mean, info_std = numbers("--mean", mean), numbers("--std", std)
    elif info.mean and info.std:
        info_mean, info_std = info.mean, info.std
    else:
        raise DataError(
            f"{name} does not state how images are normalised; give --mean and --std, e.g. "
            "--mean 0.485,0.456,0.406 --std 0.229,0.224,0.225"
        )
    channels, height, width = info.input
    return Preprocessing((channels, height, width), info_mean, info_std, info.resize)


def _classes(
    logits: Tensor, paths: list[Path], names: tuple[str, ...], top: int
) -> list[dict[str, Any]]:
    if logits.dim() != 2:
        raise ModelError(
            f"the model gives outputs of shape {list(logits.shape)}; predict needs images × classes"
        )
    shares, places = logits.float().softmax(1).topk(min(top, logits.shape[1]), dim=1)
    return [
        {
            "image": str(path),
            "top": [
                {
                    "class": names[place] if place < len(names) else str(place),
                    "index": place,
                    "probability": share,
                }
                for share, place in zip(*row, strict=True)
            ],
        }
        for path, *row in zip(paths, shares.tolist(), places.tolist(), strict=True)
    ]
