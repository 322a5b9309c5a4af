"""Latency of models on this machine: measure it, compare it, and prune to a latency target."""

from .benchmark import Row, bench
from .plot import chart
from .search import LatencyPlan
from .target import to_latency
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
