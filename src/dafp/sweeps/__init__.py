"""Many runs as jobs: each one runs once, and its result is found again."""

from .jobs import Sweep, describe, missing, sweep
from .ray_backend import Cluster
from .results_store import SweepPaths

__all__ = ["Cluster", "Sweep", "SweepPaths", "describe", "missing", "sweep"]
