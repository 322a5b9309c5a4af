"""Verification: compare the outputs of two networks, and check that a training step runs."""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import VerificationError
from ..network.calling import (
    FORWARD_ERRORS,
    call_model,
    eval_mode,
    fixed_seed,
    quiet,
    takes_images,
    tensors_in,
)
from ..network.decisions import DecisionPath
from ..network.meta_shapes import MetaOutputMode
from ..network.model_copy import deep_copy, sharing_copy
from ..network.skeleton import REAL_TENSORS, TensorKind, example_for, skeleton_of, tensor_kinds
from .random_inputs import random_first, random_like, small_images
from .same_decisions import gap_by_decisions, outputs_are_decided

TOLERANCE = 1e-5  # of the largest output
HALF_TOLERANCE = 1e-2  # where a half-precision model cannot be run in float32
MISSES = 0.01  # share of the integers in an output that may differ because of rounding
Outputs = dict[str, list[Tensor]]  # name of the input -> output tensors
ROWS = 1  # rows of the example's batch that are used: memory must not depend on the batch


def verified(
    make_small: Callable[[], nn.Module],
    make_masked: Callable[[], nn.Module],
    make_whole: Callable[[], nn.Module],
    example: Any,
) -> nn.Module:
    """Return the pruned model if its outputs equal those of the masked model, else raise.

    Both run in eval mode on the example and on a random batch. The masked model runs, and is freed,
    before the pruned one is made. `make_whole` makes a masked model with weights of its own; it is
    called only if outputs differ or dtypes have to change.
    """
    masked = make_masked()
    half = any(p.dtype in (torch.float16, torch.bfloat16) for p in masked.parameters())
    masked = make_whole() if half else masked
    inputs = _few_rows(masked, example)
    dtype, tolerance = (torch.float32, TOLERANCE) if half else (None, TOLERANCE)
    try:
        cases, wanted = _inputs_and_outputs(masked, inputs, dtype)
    except FORWARD_ERRORS:
        if not half:
            raise
        dtype, tolerance = None, HALF_TOLERANCE  # the forward needs its own dtype
        cases, wanted = _inputs_and_outputs(masked, inputs, dtype)
    del masked
    try:
        small = make_small()
    except FORWARD_ERRORS as error:
        raise VerificationError(
            f"the tensors cannot be sliced: {type(error).__name__}: {error}"
        ) from error
    runs = _to_run(small)
    try:
        given = _outputs_by_case(runs, cases, dtype)
    except FORWARD_ERRORS as error:
        raise VerificationError(
            f"the pruned model does not run: {type(error).__name__}: {error}"
        ) from error
    gaps = _gaps(given, wanted)
    if max(gaps.values()) > tolerance and not half:
        gaps = _compared_in_full(runs, make_whole(), cases, inputs)
    if max(gaps.values()) > tolerance or any(map(outputs_are_decided, wanted.values())):
        gaps = _compared_by_decisions(_to_run(small), make_whole(), cases, dtype, gaps)
    for what, gap in gaps.items():
        if gap > tolerance:
            if _shapes(given[what]) != _shapes(wanted[what]):
                raise VerificationError(
                    f"the pruned model gives outputs of shapes {_shapes(given[what])}, the masked "
                    f"model {_shapes(wanted[what])}, on {what}"
                )
            raise VerificationError(
                f"the pruned model differs from the masked model on {what}: largest difference "
                f"{gap:.2e} of the largest output (allowed: {tolerance:.0e})"
            )
    return small


def is_random(model: nn.Module, inputs: Any) -> bool:
    """Does the model give different outputs for the same input, in eval mode?"""
    model = deep_copy(model)  # a forward may write into buffers
    with torch.random.fork_rng([]), eval_mode(model), torch.no_grad():
        first, second = (tensors_in(call_model(model, inputs)) for _ in range(2))
    return _gap(first, second) > TOLERANCE


def _compared_in_full(
    small: nn.Module, masked: nn.Module, cases: dict[str, Any], inputs: Any
) -> dict[str, float]:
    """Compare with a masked model that has its own weights; if outputs differ, in float64 too."""
    gaps = _gaps(_outputs_by_case(small, cases, None), _outputs_by_case(masked, cases, None))
    if max(gaps.values()) > TOLERANCE:
        with contextlib.suppress(*FORWARD_ERRORS):  # a forward may need its own dtype
            if "a random batch" in cases:
                cases = cases | {"a random batch": random_like(inputs)}
            more = torch.float64
            gaps = _gaps(
                _outputs_by_case(small, cases, more), _outputs_by_case(masked, cases, more)
            )
    return gaps


def _compared_by_decisions(
    small: nn.Module,
    masked: nn.Module,
    cases: dict[str, Any],
    dtype: torch.dtype | None,
    gaps: dict[str, float],
) -> dict[str, float]:
    """Compare what goes into decisions, where the outputs depend on them; in float64 if needed."""
    gaps = dict(gaps)
    for what, inputs in cases.items():
        for more in (dtype, torch.float64):
            with contextlib.suppress(*(FORWARD_ERRORS if more is torch.float64 else ())):
                gap = gap_by_decisions(small, masked, inputs, more, None, _outputs, _gap)
                gaps[what] = gaps[what] if gap is None else gap
            if gaps[what] <= TOLERANCE:
                break
    return gaps


def follows_path(
    make_small: Callable[[], nn.Module],
    make_masked: Callable[[], nn.Module],
    path: DecisionPath,
) -> nn.Module | None:
    """The pruned model, if it equals the masked one on a recorded path; None if they differ.

    Both take the decisions of the path on its example, and on random images of the same size.
    """
    masked = make_masked()
    try:
        small = make_small()
    except FORWARD_ERRORS:  # `verified` reports it
        return None
    if any(p.dtype in (torch.float16, torch.bfloat16) for p in masked.parameters()):
        return None
    for inputs in (path.example, random_first(path.example)):
        if not any(_agree(small, masked, inputs, dtype, path) for dtype in (None, torch.float64)):
            return None
    return small


def _agree(
    small: nn.Module, masked: nn.Module, inputs: Any, dtype: torch.dtype | None, path: DecisionPath
) -> bool:
    small, masked = _to_run(small), _to_run(masked)
    try:
        gap = gap_by_decisions(small, masked, inputs, dtype, path, _outputs, _gap)
    except (*FORWARD_ERRORS, VerificationError):
        return False  # it may need other numbers in its input (the output is NaN), or its own dtype
    return gap is not None and gap <= TOLERANCE


def _to_run(model: nn.Module) -> nn.Module:
    """A copy that shares the weights: a forward may write into buffers and attributes."""
    return sharing_copy(model, {name for name, _ in model.named_parameters()})


def verify_trains(small: nn.Module, model: nn.Module, example: Any) -> None:
    """Raise unless a forward and backward pass run in train mode, without data if possible.

    A model that could not be trained before pruning is not checked.
    """
    for tensor_kind in tensor_kinds():
        error = _training_error(small, example, tensor_kind)
        if error is None:
            return
    if _training_error(model, example, REAL_TENSORS) is None:
        raise VerificationError(f"a training step of the pruned model fails: {error}") from error


def _training_error(model: nn.Module, example: Any, tensor_kind: TensorKind) -> Exception | None:
    """What a training step raises, on a batch of two at least, for the sake of batch norms."""
    quick = contextlib.nullcontext() if tensor_kind is REAL_TENSORS else MetaOutputMode()
    try:
        with fixed_seed(model), quiet(), tensor_kind.context(), quick:
            _step(skeleton_of(model, tensor_kind), example_for(example, tensor_kind, 2))
    except FORWARD_ERRORS as error:
        return error
    return None


def _step(model: nn.Module, inputs: Any) -> None:
    outputs = [t for t in tensors_in(call_model(model.train(), inputs)) if t.requires_grad]
    torch.autograd.backward([t.sum() for t in outputs])


def _few_rows(model: nn.Module, example: Any) -> Any:
    """The first rows of the example, if its tensors have the same number of rows."""
    sizes = {t.shape[0] for t in tree_leaves(example) if isinstance(t, Tensor) and t.dim() > 1}
    if len(sizes) != 1 or sizes.pop() <= ROWS or takes_images(example):
        return example
    few = tree_map(lambda v: v[:ROWS] if isinstance(v, Tensor) and v.dim() > 0 else v, example)
    return few if _runs(model, few) else example


def _inputs_and_outputs(
    masked: nn.Module, inputs: Any, dtype: torch.dtype | None
) -> tuple[dict[str, Any], Outputs]:
    """The inputs for both models, and the outputs of the masked model.

    The random batch has small images, which are cheap, unless the model refuses them. A model that
    refuses random numbers in its other arguments, for example as boxes, gets random images only.
    """
    example = _outputs(masked, inputs, dtype)
    for noise in (random_like(small_images(inputs)), random_like(inputs), random_first(inputs)):
        try:
            outputs = _outputs(masked, noise, dtype)
        except FORWARD_ERRORS:
            continue
        cases = {"a random batch": noise, "the example": inputs}
        return cases, {"a random batch": outputs, "the example": example}
    return {"the example": inputs}, {"the example": example}


def _runs(model: nn.Module, inputs: Any) -> bool:
    with fixed_seed(model), eval_mode(model), torch.no_grad():
        try:
            call_model(model, inputs)
        except FORWARD_ERRORS:
            return False
    return True


def _outputs_by_case(model: nn.Module, cases: dict[str, Any], dtype: torch.dtype | None) -> Outputs:
    return {what: _outputs(model, value, dtype) for what, value in cases.items()}


def _gaps(given: Outputs, wanted: Outputs) -> dict[str, float]:
    return {what: _gap(given[what], wanted[what]) for what in wanted}


def _shapes(outputs: list[Tensor]) -> list[tuple[int, ...]]:
    return [tuple(t.shape) for t in outputs]


def _gap(ours: list[Tensor], theirs: list[Tensor]) -> float:
    """Largest difference, relative to the largest output.

    Infinite if ours is not finite, or has other shapes.
    """
    if _shapes(ours) != _shapes(theirs):
        return float("inf")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if not a.numel():
            continue
        if a.is_complex():
            a, b = torch.view_as_real(a), torch.view_as_real(b)
        if not a.is_floating_point():  # classes, positions: may change by rounding
            share = float((a != b).double().mean())
            worst = max(worst, share if share > MISSES else 0.0)
            continue
        if not bool(b.isfinite().all()):
            raise VerificationError(
                "the masked model's output is not finite, so nothing can be verified; look for "
                "NaN or infinite weights, or an example far outside the range of the data"
            )
        if not bool(a.isfinite().all()):
            return float("inf")
        scale = float(b.abs().max()) or 1.0
        worst = max(worst, float((a - b).abs().max()) / scale)
    return worst


def _outputs(model: nn.Module, example: Any, dtype: torch.dtype | None) -> list[Tensor]:
    def one(value: Any) -> Any:
        if dtype is not None and isinstance(value, Tensor) and value.is_floating_point():
            return value.to(dtype)
        return value

    if dtype is not None:
        model = deep_copy(model).to(dtype)
    with fixed_seed(model), eval_mode(model), torch.no_grad():
        return [
            t.float() if t.dtype in (torch.float16, torch.bfloat16) else t
            for t in tensors_in(call_model(model, tree_map(one, example)))
        ]
