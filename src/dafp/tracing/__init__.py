"""Tracing: find which channels of a network must be removed together.

`trace` (tracer.py) shows the algorithm on one page. What each operator does to channels is in
rules/table.py; how ties between channels become groups is in groups.py. README.md works through a
small network.
"""

from .call import Call
from .tracer import trace

__all__ = ["Call", "trace"]
