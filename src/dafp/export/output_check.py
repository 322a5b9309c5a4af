"""Run an ONNX model in ONNX Runtime and compare its outputs with those of PyTorch."""

import contextlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import ExportError
from ..extras import need
from ..network.calling import (
    FORWARD_ERRORS,
    batch_of,
    call_model,
    describe,
    fixed_seed,
    tensors_in,
)
from ..network.model_copy import deep_copy

TOLERANCE = 1e-4  # of the largest output
SIZES = (1, 3, 8)  # rows of the random batches


def session_of(data: bytes | str, threads: int = 1) -> Any:
    """An ONNX Runtime session on the CPU, from the path of a file or from its bytes."""
    runtime = need("onnxruntime", "onnx", "running ONNX")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    try:
        return runtime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        first = (str(error).splitlines() or [""])[0]
        raise ExportError(f"ONNX Runtime does not take the model: {first}") from error


def check(data: bytes, model: nn.Module, example: Any) -> dict[str, float]:
    """Batch -> largest difference from PyTorch; raises ExportError if it is too large.

    The batches are the example and random ones of other sizes. Sizes with which the PyTorch model
    fails are skipped.
    """
    session = session_of(data)
    ours = deep_copy(model).eval()
    gaps = {"the example": _gap(session, ours, example)}
    for seed, rows in enumerate(SIZES):
        batch = random_batch(example, rows, seed)
        with contextlib.suppress(_RefusedError):
            gaps[f"{rows} random rows"] = _gap(session, ours, batch)
    if len(gaps) == 1:
        raise ExportError("the model runs on no other batch size than the example's")
    what, gap = max(gaps.items(), key=lambda item: item[1])
    if not gap <= TOLERANCE:
        raise ExportError(
            f"the exported model differs from PyTorch on {what}: largest difference {gap:.2e} of "
            f"the largest output (allowed: {TOLERANCE:.0e}). No file was written. A forward that "
            "draws random numbers or branches on Python state cannot be exported"
        )
    return gaps


def random_batch(example: Any, rows: int, seed: int = 0) -> Any:
    """A random batch of `rows` inputs like the example; integers are repeated instead."""
    generator = torch.Generator().manual_seed(seed)
    batch = batch_of(example)

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.dim() or value.shape[0] != batch:
            return value
        if value.is_floating_point():
            return torch.randn((rows, *value.shape[1:]), generator=generator).to(value)
        return torch.cat([value] * -(-rows // batch))[:rows]

    return tree_map(one, example)


def own_copy(example: Any) -> Any:
    """A copy without gradients, for code that may change it in place."""
    return tree_map(lambda v: v.detach().clone() if isinstance(v, Tensor) else v, example)


def feeds(session: Any, example: Any) -> dict[str, Any]:
    """Input name -> array, matched by name for a dict, else by order."""
    values = list(example.values()) if isinstance(example, Mapping) else example
    tensors = [value.detach().numpy() for value in tree_leaves(values) if isinstance(value, Tensor)]
    names = [given.name for given in session.get_inputs()]
    if isinstance(example, Mapping) and set(names) <= set(example):
        return {name: example[name].detach().numpy() for name in names}
    if len(names) != len(tensors):
        raise ExportError(
            f"the file has {len(names)} inputs ({', '.join(names)}), the example {len(tensors)}"
        )
    return dict(zip(names, tensors, strict=True))


class _RefusedError(Exception):
    """The PyTorch model fails on this batch."""


def _gap(session: Any, model: nn.Module, batch: Any) -> float:
    try:
        with fixed_seed(model), torch.no_grad():
            wanted = tensors_in(call_model(model, own_copy(batch)))
    except FORWARD_ERRORS as error:
        raise _RefusedError from error
    try:
        outputs = session.run(None, feeds(session, batch))
    except RuntimeError as error:
        raise ExportError(
            f"ONNX Runtime fails on a batch of {batch_of(batch)} that PyTorch takes: {error}"
        ) from error
    given = [torch.as_tensor(output, device="cpu") for output in outputs]
    if [(t.dtype, t.shape) for t in given] != [(t.dtype, t.shape) for t in wanted]:
        raise ExportError(
            f"the exported model gives other outputs than PyTorch on a batch of {batch_of(batch)}: "
            f"{describe(given)} instead of {describe(wanted)}. No file was written"
        )
    return max((_difference(a, b) for a, b in zip(given, wanted, strict=True)), default=0.0)


def _difference(ours: Tensor, theirs: Tensor) -> float:
    """Largest difference, relative to the largest finite output; infinite if only one is finite."""
    if not theirs.numel() or torch.equal(ours, theirs):
        return 0.0
    ours, theirs = ours.double(), theirs.double()
    differ = ours != theirs  # −inf − −inf is NaN, but equal values do not differ
    gap = (ours - theirs)[differ].abs().max()
    finite = theirs[theirs.isfinite()].abs()
    scale = float(finite.max()) if finite.any() else 1.0
    return float(gap) / scale if bool(gap.isfinite()) else float("inf")
