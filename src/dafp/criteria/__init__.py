"""Criteria: functions that score how important each channel is.

A criterion takes (model, graph) and returns one score per channel for every group: the higher, the
more important. Any function with this signature is a criterion.
"""

from .activation_norm import activation_norm
from .elimination import reconstruction_error
from .lasso import lasso
from .loss_by_removal import loss_by_removal
from .scores import Criterion, Scores
from .taylor import taylor
from .weights import (
    bn_scale,
    dependency_aware,
    geometric_median,
    l1_norm,
    l2_norm,
    random,
    shift_aware,
)

__all__ = [
    "Criterion",
    "Scores",
    "activation_norm",
    "bn_scale",
    "dependency_aware",
    "geometric_median",
    "l1_norm",
    "l2_norm",
    "lasso",
    "loss_by_removal",
    "random",
    "reconstruction_error",
    "shift_aware",
    "taylor",
]
