"""Old import path of the reconstruction; using it warns."""

import warnings
from collections.abc import Iterable
from typing import Any

from torch import nn

from .graph import ChannelGraph, PruningPlan
from .recovery.reconstruction import reconstruct


def repair(
    model: nn.Module,
    graph: ChannelGraph,
    plan: PruningPlan,
    batches: Iterable[Any],
    compensate: bool = False,
) -> nn.Module:
    """`dafp.reconstruct`, which replaces it; `compensate` has no effect any more."""
    warnings.warn(
        "dafp.repair.repair is now dafp.reconstruct; the old path will be removed in version 0.3",
        DeprecationWarning,
        stacklevel=2,
    )
    return reconstruct(model, graph, plan, batches)
