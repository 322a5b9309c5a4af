"""dafp: any CNN in, a smaller and verified CNN out.

    graph = dafp.trace(model, example)
    scores = dafp.criteria.dependency_aware(model, graph)
    plan = dafp.selection.to_target(scores, graph, target=0.5)
    small = dafp.prune(model, graph, plan)

or, in one call, `small = dafp.slim(model, example, ratio=0.5)`.
"""

from . import criteria, errors, selection
from .artifact import load, save
from .carryover import carry_over
from .control import SparsityController
from .cost import cost
from .errors import DafpError
from .graph import ChannelGraph, Group, Kept, Slot
from .masking import mask
from .plan import Cost, PruningPlan
from .recalibration import recalibrate
from .slimming import slim
from .sparsity import Record, SparseTraining
from .surgery import plan_of, prune
from .tracing import Call, trace

__version__ = "0.1.0"

__all__ = [
    "Call",
    "ChannelGraph",
    "Cost",
    "DafpError",
    "Group",
    "Kept",
    "PruningPlan",
    "Record",
    "Slot",
    "SparseTraining",
    "SparsityController",
    "carry_over",
    "cost",
    "criteria",
    "errors",
    "load",
    "mask",
    "plan_of",
    "prune",
    "recalibrate",
    "save",
    "selection",
    "slim",
    "trace",
]
