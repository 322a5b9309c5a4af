"""What to do after a failed verification: find the groups that cause it, and keep them."""

from collections.abc import Callable, Collection

from torch import nn

from ..errors import VerificationError
from ..graph.channel_graph import ChannelGraph
from ..graph.group import some
from ..graph.kept_groups import keep_groups
from ..graph.plan import PruningPlan
from .failing_groups import MAX_RUNS, FailingGroups, failing_groups
from .verification import is_random

_ALONE = "verification fails if it is pruned: its width matters in a way tracing did not see"
_TOGETHER = "verification fails if it is pruned together with other groups"
_UNTESTED = f"verification fails, and {MAX_RUNS} runs could not tell whether it is the cause"


def with_repaired_graph(
    error: VerificationError,
    model: nn.Module,
    graph: ChannelGraph,
    plan: PruningPlan,
    attempt: Callable[[PruningPlan], None],
) -> VerificationError:
    """The error, with the groups because of which the plan fails and a graph that keeps them.

    `attempt` prunes by a resolved plan; it raises a VerificationError if that fails.
    """
    if is_random(model, graph.example):
        return VerificationError(
            "the model gives different outputs for the same input, in eval mode too, so nothing "
            "can be verified; look for dropout without training=self.training"
        )

    def works(names: Collection[str]) -> bool:
        keep = {name: plan.keep[name] for name in names}
        try:
            attempt(graph.resolve(PruningPlan(keep, {}, plan.spare)))
        except VerificationError:
            return False
        return True

    if not works(()):
        return error  # nothing was pruned: no group is the cause
    pruned = [group.name for group in graph.groups if len(plan.keep[group.name]) < group.size]
    found = failing_groups(pruned, works)
    names = tuple(name for name in pruned if name in found.names)
    explained = VerificationError(
        f"{error}. The cause is {'the group' if len(names) == 1 else f'{len(names)} groups:'} "
        f"{some([repr(name) for name in names])}, whose width matters in a way tracing did not "
        "see. Make another plan from error.graph, which keeps them whole (as does "
        "trace(..., keep=error.groups)); dafp.slim does so itself"
    )
    explained.groups, explained.graph = names, keep_groups(graph, _reasons(found))
    return explained


def _reasons(found: FailingGroups) -> dict[str, str]:
    return {
        **dict.fromkeys(found.alone, _ALONE),
        **dict.fromkeys(found.together, _TOGETHER),
        **dict.fromkeys(found.untested, _UNTESTED),
    }
