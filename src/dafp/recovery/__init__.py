"""Recovering accuracy after pruning, and finding out which layers need their channels."""

from .recalibration import recalibrate
from .reconstruction import repair
from .sensitivity import Sensitivity, layer_sensitivity

__all__ = ["Sensitivity", "layer_sensitivity", "recalibrate", "repair"]
