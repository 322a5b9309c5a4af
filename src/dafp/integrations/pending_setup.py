"""The arguments of a callback, kept until its trainer has a model and an optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.optim import Optimizer

from ..criteria.scores import Criterion
from ..sparse_training.algorithm1 import check_control
from ..sparse_training.training import SparseTraining
from ..tracing import trace


@dataclass(frozen=True)
class PendingSetup:
    """The arguments of `dafp.trace` and `dafp.SparseTraining`, without model and optimizer."""

    target: float
    example: Any  # input of the network, as in dafp.trace
    residual: str = "keep"
    keep: Sequence[str] = ()
    rules: Mapping[Any, Any] | None = None
    p: float = 0.01
    criterion: str | Criterion = "dependency_aware"
    step: float | str = "auto"
    unit: str = "filters"

    def __post_init__(self) -> None:
        check_control(self.target, 1, self.step)  # raises now, not when training starts

    def start(self, model: nn.Module, optimizer: Optimizer, epochs: int) -> SparseTraining:
        """Trace the model and attach sparse training to its optimizer."""
        graph = trace(model, self.example, self.residual, self.keep, self.rules)
        return SparseTraining(
            model,
            graph,
            optimizer,
            self.target,
            epochs,
            self.p,
            self.criterion,
            self.step,
            unit=self.unit,
        )
