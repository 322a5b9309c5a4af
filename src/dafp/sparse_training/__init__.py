"""Training towards sparsity: the penalty on BN scales and its automatic control."""

from .algorithm1 import SparsityController
from .training import Record, SparseTraining

__all__ = ["Record", "SparseTraining", "SparsityController"]
