"""Write a model as one ONNX file: exported, folded, checked in ONNX Runtime, then written."""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import ExportError, FileError
from ..extras import need
from ..network.cost import Cost, cost
from ..network.model_info import ModelInfo, info_from_json, info_of
from ..storage.atomic_write import write_atomically
from .onnx_rewrites import fold_batch_norms, fold_selections, plain_flattens
from .output_check import check, own_copy
from .torch_program import onnx_graph

SELECTIONS = ("fold", "gather")


@dataclass(frozen=True)
class Exported:
    """What `to_onnx` wrote, and how much it differs from PyTorch."""

    path: Path
    size: int  # bytes
    gaps: dict[str, float]  # batch -> largest difference, relative to the largest output
    nodes: dict[str, int]  # operator -> number of nodes
    folded_norms: int
    folded_selections: int
    cost: Cost
    notes: tuple[str, ...]


def to_onnx(
    model: nn.Module,
    example: Any,
    path: str | os.PathLike[str],
    *,
    fold_bn: bool = False,
    selections: str = "fold",
) -> Exported:
    """Write the model in eval mode to an ONNX file with a dynamic batch size.

    What the model knows of itself (input, normalisation, class names) is written into the file's
    metadata, under the key "dafp". The exported model is run in ONNX Runtime and compared with
    PyTorch, on the example and on random batches of other sizes. The file is written only if the
    outputs agree.

    Args:
        model: the network, in float32 on the CPU
        example: an input: a tensor, a tuple of arguments or a dict of keyword arguments
        path: the file to write
        fold_bn: fold BN into the convolution or linear layer before it
        selections: "fold" replaces feature selections by zero weights where that is faster;
            "gather" writes each of them as a Gather with constant indices

    Returns:
        What was written: size, operators, and the largest difference from PyTorch.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
        >>> done = dafp.export.to_onnx(model, torch.randn(1, 3, 8, 8), "net.onnx", fold_bn=True)
        >>> done.nodes
        {'Conv': 1, 'Relu': 1}
        >>> max(done.gaps.values()) < 1e-4
        True
    """
    if selections not in SELECTIONS:
        raise ExportError(f"selections={selections!r} is not known; choose 'fold' or 'gather'")
    _check_types(model)
    check_destination(Path(path))
    whole = cost(model, own_copy(example))
    graph, notes = onnx_graph(model, example)
    plain_flattens(graph)
    gathers = fold_selections(graph) if selections == "fold" else 0
    norms = fold_batch_norms(graph) if fold_bn else 0
    _describe(graph, model, whole)
    data = _bytes(graph)
    gaps = check(data, model, example)
    write_atomically(Path(path), data)
    nodes: dict[str, int] = {}
    for node in graph.graph:
        nodes[node.op_type] = nodes.get(node.op_type, 0) + 1
    return Exported(Path(path), len(data), gaps, nodes, norms, gathers, whole, tuple(notes))


def described(metadata: dict[str, str]) -> Cost | None:
    """The cost that `to_onnx` wrote into a file; None for files that dafp did not write."""
    try:
        value = json.loads(metadata["dafp"])
        return Cost(int(value["params"]), int(value["macs"]))
    except (KeyError, ValueError, TypeError):
        return None


def info_in_onnx(metadata: dict[str, str], path: Path) -> ModelInfo:
    """What `to_onnx` wrote about the model; nothing for files that dafp did not write."""
    try:
        value = json.loads(metadata.get("dafp", "{}"))
    except ValueError as error:
        raise FileError(f"the metadata of {path} are damaged: {error}") from error
    return info_from_json(value)


def _check_types(model: nn.Module) -> None:
    half = (torch.float16, torch.bfloat16)
    for name, tensor in model.named_parameters():
        if tensor.dtype in half or tensor.device.type != "cpu":
            kind = str(tensor.dtype).removeprefix("torch.")
            raise ExportError(
                f"{name!r} is {kind} on {tensor.device}; the check runs in float32 on the CPU. "
                "Export model.float().cpu(), and convert the file afterwards"
            )


def check_destination(path: Path) -> None:
    """Check before the export, which may take minutes, that the file can be written."""
    if path.is_dir():
        raise FileError(f"cannot write {path}: it is a directory; give the name of a file in it")
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror or error}; give a file in a directory that "
            "exists and can be written to"
        ) from error


def _describe(graph: Any, model: nn.Module, whole: Cost) -> None:
    passes = need("onnx_ir.passes.common", "onnx", "the export to ONNX")
    passes.ClearMetadataAndDocStringPass()(graph)  # torch writes source paths into every node
    graph.producer_name, graph.producer_version = "dafp", None
    about = {
        **info_of(model).to_json(),
        "class": type(model).__qualname__,
        "params": whole.params,
        "macs": whole.macs,
    }
    graph.metadata_props["dafp"] = json.dumps(about, sort_keys=True)


def _bytes(graph: Any) -> bytes:
    ir = need("onnx_ir", "onnx", "the export to ONNX")
    try:
        data: bytes = ir.to_proto(graph).SerializeToString()
    except ValueError as error:  # protobuf is limited to 2 GB
        raise ExportError(f"the model is too large for one ONNX file: {error}") from error
    return data
