"""dafp: any CNN in, a smaller and verified CNN out.

    graph = dafp.trace(model, example)
    scores = dafp.criteria.dependency_aware(model, graph)
    plan = dafp.selection.to_target(scores, graph, target=0.5)
    small = dafp.prune(model, graph, plan)

or, in one call, `small = dafp.slim(model, example, ratio=0.5)`.
"""

from . import criteria, errors, selection
from .errors import DafpError
from .files.model_file import load, save
from .graph.channel_graph import ChannelGraph, Group, Kept, Slot
from .graph.plan import Cost, PruningPlan
from .network.cost import cost
from .one_call import slim
from .pruning.masking import mask
from .pruning.optimizer_state import carry_over
from .pruning.pruned_model import plan_of, prune
from .recovery.recalibration import recalibrate
from .sparse_training.algorithm1 import SparsityController
from .sparse_training.training import Record, SparseTraining
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
