"""Files: saved models and checkpoints."""

from .model_file import load, save

__all__ = ["load", "save"]
