"""First-order Taylor importance of every channel, accumulated during training."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import TrainingError


class TaylorImportance:
    """A running mean of |γ·∂L/∂γ + β·∂L/∂β|: how much the loss changes without a channel.

    This first-order estimate has the unit of the loss in every layer, so that channels of different
    layers can be compared. It uses the gradients of the optimizer's step: no other backward pass
    runs, and the CPU does not wait for the device.
    """

    def __init__(
        self, weights: Sequence[nn.Parameter], shifts: Sequence[nn.Parameter | None]
    ) -> None:
        self.weights = list(weights)
        self.shifts = [
            torch.zeros_like(w) if s is None else s for w, s in zip(weights, shifts, strict=True)
        ]
        first = weights[0]
        self.mean = torch.zeros(sum(w.numel() for w in weights), device=first.device)
        self.steps = 0

    @torch.no_grad()
    def add(self, window: int, skipped: Tensor | None = None) -> None:
        """Add the gradients of one step; the mean covers about `window` steps."""
        self.steps += 1
        now = self._joined(self.weights) * self._joined([_gradient(w) for w in self.weights])
        now += self._joined(self.shifts) * self._joined([_gradient(s) for s in self.shifts])
        share: Any = 1 / min(self.steps, max(1, window))
        if skipped is not None:  # 1 after infinite gradients
            share = share * (1 - skipped)
        self.mean.lerp_(now.abs().nan_to_num(0.0, 0.0, 0.0), share)

    def _joined(self, tensors: Sequence[Tensor]) -> Tensor:
        return torch.cat([t.to(self.mean) for t in tensors])

    def by_scale(self) -> list[Tensor]:
        """The mean of every entry, a vector for each scale."""
        return list(self.mean.cpu().split([w.numel() for w in self.weights]))

    def state_dict(self) -> dict[str, Any]:
        return {"mean": self.mean.cpu().clone(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state["mean"].shape != self.mean.shape:
            raise TrainingError("this state belongs to another model: its scales differ")
        self.mean.copy_(state["mean"])
        self.steps = state["steps"]


def _gradient(tensor: Tensor) -> Tensor:
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
