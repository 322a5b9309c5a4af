"""Many runs as jobs: each is done once, wherever and however often it is asked for."""

from .jobs import Sweep, describe, missing, sweep
from .ray_backend import Cluster
from .results_store import SweepPaths

__all__ = ["Cluster", "Sweep", "SweepPaths", "describe", "missing", "sweep"]
