"""Convert a PyTorch model to an ONNX graph with a dynamic batch size, by torch's exporter."""

import inspect
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..errors import ExportError
from ..extras import need
from ..network.calling import FORWARD_ERRORS, batch_of
from ..network.model_copy import deep_copy
from .branches import BothWays
from .output_check import own_copy

_BOTH_WAYS = (
    "the forward branches on numbers: the file computes both ways and picks one; only the way that "
    "the batches of the check take was compared with PyTorch"
)


def onnx_graph(model: nn.Module, example: Any) -> tuple[Any, list[str]]:
    """The model in eval mode as an onnx_ir.Model, and notes for the user."""
    need("onnx", "onnx", "the export to ONNX")
    optimizer = need("onnxscript.optimizer", "onnx", "the export to ONNX")
    passes = need("onnx_ir.passes.common", "onnx", "the export to ONNX")
    copy = deep_copy(model).eval()
    copy.register_forward_pre_hook(_of_its_own, prepend=True, with_kwargs=True)
    inputs = _twice(example) if batch_of(example) == 1 else own_copy(example)
    with quiet(), torch.no_grad():
        program, notes = _exported(copy, inputs)
        program = program.run_decompositions(_DECOMPOSED)
        try:
            graph = torch.onnx.export(program, dynamo=True, optimize=False, verbose=False)
        except torch.onnx.OnnxExporterError as error:
            raise ExportError(
                f"{type(model).__name__} cannot be written as ONNX: {_root(error)}"
            ) from error
        assert graph is not None
        optimizer.fold_constants_ir(graph.model)
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(graph.model)
        passes.IdentityEliminationPass()(graph.model)
        passes.CommonSubexpressionEliminationPass()(graph.model)
        passes.RemoveUnusedNodesPass()(graph.model)
    _name_batch(graph.model)
    return graph.model, notes


def _exported(model: nn.Module, inputs: Any) -> tuple[torch.export.ExportedProgram, list[str]]:
    """Call torch.export; if it fails, again with both branches of every condition on values."""
    args, kwargs = _arguments(inputs)
    free = _free_batch(model, inputs)

    def export(module: nn.Module) -> torch.export.ExportedProgram:
        return torch.export.export(module, args, kwargs, dynamic_shapes=free, strict=False)

    try:
        return export(model), []
    except FORWARD_ERRORS as error:
        first = error
    try:
        both = export(BothWays(model).eval())
    except FORWARD_ERRORS as error:
        raise ExportError(
            f"{type(model).__name__} cannot be followed by torch.export with a free batch size: "
            f"{_root(first)}"
        ) from error
    return both, [_BOTH_WAYS]


def _of_its_own(_: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Copy the inputs, which the forward may change in place: ONNX cannot return changed inputs."""
    return own_copy(args), own_copy(kwargs)


def _twice(example: Any) -> Any:
    """Repeat a batch of one: torch.export treats a size of 1 as constant."""

    def one(value: Any) -> Any:
        single = isinstance(value, Tensor) and value.dim() and value.shape[0] == 1
        return torch.cat([value, value]) if single else value

    return tree_map(one, own_copy(example))


def _arguments(example: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(example, Mapping):
        return (), dict(example)
    return (tuple(example) if isinstance(example, (tuple, list)) else (example,)), {}


def _free_batch(model: nn.Module, inputs: Any) -> dict[str, Any]:
    """The dynamic axes: the first axis of every tensor whose size there is the batch size."""
    args, kwargs = _arguments(inputs)
    rows, batch = batch_of(inputs), torch.export.Dim.DYNAMIC

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return None
        return {0: batch} if value.dim() and value.shape[0] == rows else {}

    named = inspect.signature(model.forward).bind(*args, **kwargs).arguments  # as torch.export does
    return {name: tree_map(one, value) for name, value in named.items()}


def _name_batch(model: Any) -> None:
    """Name the dynamic axis "batch" instead of torch's generated name."""
    ir = need("onnx_ir", "onnx", "the export to ONNX")
    first = next(iter(model.graph.inputs[0].shape), None)
    values = [*model.graph.inputs, *(v for node in model.graph for v in node.outputs)]
    for value in values:
        if value.shape is not None:
            sizes = ["batch" if size == first else size for size in value.shape]
            value.shape = ir.Shape(sizes)


def _adaptive_max_pool(x: Tensor, size: list[int]) -> tuple[Tensor, Tensor]:
    """aten.adaptive_max_pool2d in operators that ONNX has, for a constant image size."""
    height, width = x.shape[-2], x.shape[-1]
    values, indices = [], []
    for top, bottom in _cells(height, size[0]):
        for left, right in _cells(width, size[1]):
            cell = x[..., top:bottom, left:right].flatten(-2)
            value, index = cell.max(-1)
            wide = right - left
            values.append(value)
            indices.append((index // wide + top) * width + index % wide + left)
    shape = (*x.shape[:-2], *size)
    return torch.stack(values, -1).view(shape), torch.stack(indices, -1).view(shape)


def _cells(whole: int, parts: int) -> list[tuple[int, int]]:
    return [(i * whole // parts, math.ceil((i + 1) * whole / parts)) for i in range(parts)]


_DECOMPOSED = {torch.ops.aten.adaptive_max_pool2d.default: _adaptive_max_pool}


def _root(error: BaseException) -> str:
    """The first line of the error that caused a chain of errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = [line for line in str(error).splitlines() if line.strip()] or [""]
    return f"{type(error).__name__}: {lines[0]}"


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the exporter's warnings and logs about its internals, which no user can change."""
    level = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
