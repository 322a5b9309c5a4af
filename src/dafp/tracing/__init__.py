"""Trace: run a network once without numbers, and find what must be removed together."""

from .call import Call
from .tracer import trace

__all__ = ["Call", "trace"]
