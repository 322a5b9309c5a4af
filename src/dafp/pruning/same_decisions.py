"""Verification of networks that decide: the pruned network takes the decisions of another run.

Which boxes a detector returns depends on ties and thresholds, which rounding decides. So the
numbers that go into every decision are compared instead, and the outputs that follow from the same
decisions.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from ..network.decisions import (
    DecisionPath,
    Decisions,
    OtherPathError,
    Replay,
    RunMode,
    gap_between,
)

Run = Callable[[nn.Module, Any, torch.dtype | None], list[Tensor]]
Gap = Callable[[list[Tensor], list[Tensor]], float]


def outputs_are_decided(outputs: list[Tensor]) -> bool:
    """Are there outputs that numbers alone do not verify: integers, or nothing at all?"""
    return any(not t.numel() or not (t.is_floating_point() or t.is_complex()) for t in outputs)


def gap_by_decisions(
    small: nn.Module,
    masked: nn.Module,
    inputs: Any,
    dtype: torch.dtype | None,
    path: DecisionPath | None,
    run: Run,
    gap: Gap,
) -> float | None:
    """The largest gap of what goes into decisions, and of the outputs; None without decisions.

    Both networks take the decisions of the path, or else both those of the masked network.
    """
    first = Replay(path.decisions, keep_inputs=True) if path else Decisions(keep_inputs=True)
    try:
        with RunMode(first):
            wanted = run(masked, inputs, dtype)
        second = Replay(first.taken, keep_inputs=True)
        with RunMode(second):
            given = run(small, inputs, dtype)
    except OtherPathError:
        return float("inf")
    if not first.taken:
        return None
    return max(gap_between(second.taken, first.taken), gap(given, wanted))
