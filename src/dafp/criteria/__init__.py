"""Criteria: functions that score how important each channel is.

A criterion takes (model, graph) and returns one score per channel for every group: the higher, the
more important. Any function with this signature is a criterion.
"""

from .elimination import reconstruction_error
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
    "bn_scale",
    "dependency_aware",
    "geometric_median",
    "l1_norm",
    "l2_norm",
    "random",
    "reconstruction_error",
    "shift_aware",
    "taylor",
]
