"""Many runs as jobs: each one runs once, and its stored result is reused."""

from .jobs import Sweep, describe, missing, sweep
from .ray_backend import Cluster
from .results_store import SweepPaths

__all__ = ["Cluster", "Sweep", "SweepPaths", "describe", "missing", "sweep"]
