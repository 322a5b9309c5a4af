"""How hard to pull: the penalty λ on the BN scales, from how sparse the network has become."""

from ..errors import TrainingError

_FIRST_PENALTY = 1e-4  # Network Slimming's λ
_FASTER, _SLOWER = 1.35, 0.5


class SparsityController:
    """Algorithm 1 of the paper: raise λ while the sparsity lags, lower it when it is too much.

    After epoch t of N, with target r and step Δ:

        if   P_t − P_{t−1} < (r − P_{t−1}) / (N − t + 1):  λ += Δ
        elif P_t > r:                                      λ −= Δ, not below 0

    With step="auto" λ changes by factors instead, so that no step has to be chosen. It sees
    nothing but P here; `SparseTraining` looks ahead as well.
    """

    def __init__(self, target: float, epochs: int, step: float | str = "auto") -> None:
        if not 0 < target < 1:
            raise TrainingError(
                f"target={target} is the share to remove: it must lie between 0 and 1"
            )
        if epochs < 1:
            raise TrainingError(f"epochs={epochs} must be at least 1")
        if step != "auto" and (isinstance(step, str) or not 0 < step < float("inf")):
            raise TrainingError(f"step={step!r} must be 'auto' or a positive number, e.g. 1e-5")
        self.target, self.epochs, self.step = target, epochs, step
        self.penalty, self.sparsity, self.epoch = 0.0, 0.0, 0

    def update(self, sparsity: float) -> float:
        """Take the sparsity P after one more epoch; return the λ of the next."""
        self.epoch += 1
        left = max(1, self.epochs - self.epoch + 1)
        lags = sparsity - self.sparsity < (self.target - self.sparsity) / left
        if isinstance(self.step, str):
            self.penalty = self._by_factor(sparsity, lags)
        elif lags:
            self.penalty += self.step
        elif sparsity > self.target:
            self.penalty = max(0.0, self.penalty - self.step)
        self.sparsity = sparsity
        return self.penalty

    def _by_factor(self, sparsity: float, lags: bool) -> float:
        if sparsity >= self.target:
            return self.penalty * _SLOWER
        if lags:
            return max(_FIRST_PENALTY, self.penalty * _FASTER)
        return self.penalty
