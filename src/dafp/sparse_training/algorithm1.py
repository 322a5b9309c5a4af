"""Algorithm 1 of the paper: the penalty λ on BN scales, from the sparsity P after each epoch."""

from typing import Any

from ..errors import TrainingError


class SparsityController:
    """Algorithm 1: raise λ while the sparsity P lags behind, lower it when P exceeds the target.

    After epoch t of N, with target r and step Δ (λ and P start at 0):

        if   P_t − P_{t−1} < (r − P_{t−1}) / (N − t + 1):  λ += Δ
        elif P_t > r:                                      λ −= Δ, not below 0

    `SparseTraining(..., step=Δ)` uses it. step="auto" is another control, which also needs the
    network; only `SparseTraining` offers it (`automatic_control.py`).

    Args:
        target: r, the share to remove
        epochs: N
        step: Δ; the paper uses 1e-5

    Examples:
        >>> controller = dafp.SparsityController(target=0.5, epochs=4, step=1.0)
        >>> [controller.update(sparsity) for sparsity in (0.0, 0.25, 0.3, 0.75)]
        [1.0, 1.0, 2.0, 1.0]
    """

    def __init__(self, target: float, epochs: int, step: float | str) -> None:
        check_control(target, epochs, step)
        if isinstance(step, str):
            raise TrainingError(
                "step='auto' needs the network, not only its sparsity: use "
                "dafp.SparseTraining(model, graph, optimizer, step='auto'), or give a number for "
                "Algorithm 1, e.g. step=1e-5"
            )
        self.target, self.epochs, self.step = target, epochs, step
        self.penalty, self.sparsity, self.epoch = 0.0, 0.0, 0

    def update(self, sparsity: float) -> float:
        """Take the sparsity P after one more epoch; return the λ of the next."""
        self.epoch += 1
        left = max(1, self.epochs - self.epoch + 1)
        if sparsity - self.sparsity < (self.target - self.sparsity) / left:
            self.penalty += self.step
        elif sparsity > self.target:
            self.penalty = max(0.0, self.penalty - self.step)
        self.sparsity = sparsity
        return self.penalty

    def state_dict(self) -> dict[str, Any]:
        """λ, P and t, for a restart."""
        return {"penalty": self.penalty, "sparsity": self.sparsity, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a `state_dict`."""
        self.penalty, self.sparsity = state["penalty"], state["sparsity"]
        self.epoch = state["epoch"]


def check_control(target: float, epochs: int, step: float | str) -> None:
    """Raise unless these are a target, a number of epochs and a step (a number, or "auto")."""
    if not 0 < target < 1:
        raise TrainingError(f"target={target} is the share to remove: it must lie between 0 and 1")
    if epochs < 1:
        raise TrainingError(f"epochs={epochs} must be at least 1")
    if step != "auto" and (isinstance(step, str) or not 0 < step < float("inf")):
        raise TrainingError(f"step={step!r} must be 'auto' or a positive number, e.g. 1e-5")
