"""dafp: any CNN in, a smaller and verified CNN out.

    graph = dafp.trace(model, example)
    scores = dafp.criteria.dependency_aware(model, graph)
    plan = dafp.selection.to_target(scores, graph, target=0.5)
    small = dafp.prune(model, graph, plan)

or, in one call, `small = dafp.slim(model, example, ratio=0.5)`.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import criteria, errors, selection
    from .errors import DafpError
    from .files import load, save
    from .graph import ChannelGraph, Group, Kept, PruningPlan, Slot
    from .network.baking import bake
    from .network.cost import Cost, cost
    from .one_call import slim, slim_report
    from .pruning import carry_over, mask, plan_of, prune
    from .recovery import recalibrate, reconstruct
    from .sparse_training import Record, SparseTraining, SparsityController
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
    "bake",
    "carry_over",
    "cost",
    "criteria",
    "errors",
    "load",
    "mask",
    "plan_of",
    "prune",
    "recalibrate",
    "reconstruct",
    "save",
    "selection",
    "slim",
    "slim_report",
    "trace",
]

# Where each name comes from. Names are imported when they are first used, so that `dafp --help`
# need not wait for torch.
_HOME = {
    "Call": "tracing",
    "ChannelGraph": "graph",
    "Cost": "network.cost",
    "DafpError": "errors",
    "Group": "graph",
    "Kept": "graph",
    "PruningPlan": "graph",
    "Record": "sparse_training",
    "Slot": "graph",
    "SparseTraining": "sparse_training",
    "SparsityController": "sparse_training",
    "bake": "network.baking",
    "carry_over": "pruning",
    "cost": "network.cost",
    "load": "files",
    "mask": "pruning",
    "plan_of": "pruning",
    "prune": "pruning",
    "recalibrate": "recovery",
    "reconstruct": "recovery",
    "save": "files",
    "slim": "one_call",
    "slim_report": "one_call",
    "trace": "tracing",
}
_PACKAGES = {"criteria", "data", "errors", "export", "integrations", "latency", "models"}
_PACKAGES |= {"recovery", "selection"}
_DEPRECATED = {"repair", "sensitivity"}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    if name in _PACKAGES | _DEPRECATED:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES, "__version__"})
