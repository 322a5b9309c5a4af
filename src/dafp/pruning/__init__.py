"""Pruning: make the smaller network, and verify it against the masked one."""

from .masking import mask
from .optimizer_state import carry_over
from .pruned_model import plan_of, prune

__all__ = ["carry_over", "mask", "plan_of", "prune"]
