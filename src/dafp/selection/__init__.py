"""Selection: from scores to a plan of the channels to keep."""

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
