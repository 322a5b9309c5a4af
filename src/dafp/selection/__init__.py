"""From scores to a plan: which channels of each group stay."""

from .rules import (
    Measure,
    Rule,
    global_ranking,
    local_threshold,
    reach,
    removed_share,
    to_target,
    uniform,
)

__all__ = [
    "Measure",
    "Rule",
    "global_ranking",
    "local_threshold",
    "reach",
    "removed_share",
    "to_target",
    "uniform",
]
