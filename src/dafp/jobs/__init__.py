"""Many runs as jobs: each is done once, wherever and however often it is asked for."""

from .on_ray import Cluster
from .store import Place
from .sweep import Sweep, describe, missing, sweep

__all__ = ["Cluster", "Place", "Sweep", "describe", "missing", "sweep"]
