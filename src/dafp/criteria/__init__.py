"""How much each channel matters: one function per criterion, all of the same shape.

A criterion takes (model, graph) and returns, for every group, a score per channel: the higher, the
more important. Any function of that shape is a criterion.
"""

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
    "shift_aware",
    "taylor",
]
