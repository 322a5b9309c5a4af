"""How quick a model is on this machine: measured, compared, and as a target of pruning."""

from .benchmark import Row, bench
from .plot import chart
from .target import LatencyPlan, to_latency
from .timing import Ratio, Timing, by_turns, ratio

__all__ = [
    "LatencyPlan",
    "Ratio",
    "Row",
    "Timing",
    "bench",
    "by_turns",
    "chart",
    "ratio",
    "to_latency",
]
