"""Recovering accuracy after pruning, and finding out which layers need their channels."""

from .damage import measure_damage
from .recalibration import recalibrate
from .reconstruction import reconstruct
from .reconstruction_report import RebuiltLayer, Reconstruction, reconstruction_of
from .sensitivity import Sensitivity, layer_sensitivity
from .variance_compensation import compensate_variances
from .width_search import search_widths

__all__ = [
    "RebuiltLayer",
    "Reconstruction",
    "Sensitivity",
    "compensate_variances",
    "layer_sensitivity",
    "measure_damage",
    "recalibrate",
    "reconstruct",
    "reconstruction_of",
    "search_widths",
]
