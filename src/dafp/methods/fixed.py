"""slm+da+local, from the λ ablation: λ is fixed, and p is searched until the target is met."""

from .dafp import plan_to_target, threshold
from .method import Method
from .slm import Slimming

METHOD = Method(
    "slm+da+local",
    plan_to_target,
    Slimming,
    threshold=threshold,
    shared_training="slm",
    decays_lr=True,
)
