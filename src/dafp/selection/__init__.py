"""From scores to a plan: which channels of each group stay."""

from .rules import Rule, global_ranking, local_threshold, uniform
from .targets import Measure, reach, removed_share, to_target

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
