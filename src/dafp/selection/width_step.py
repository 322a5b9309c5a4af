"""Which multiples widths should be of, where commands are to choose: --round-to auto."""

from collections.abc import Sequence

from ..graph.channel_graph import ChannelGraph
from .targets import reach

STEPS = (16, 8, 4, 2)  # floats of AVX-512, of AVX2, of SSE and NEON; runtimes fill such blocks up
ROOM = 0.25  # of what may be removed beyond the target must be left to choose from


def step_in(widths: Sequence[tuple[int, int]]) -> int:
    """The largest of these numbers that all widths (before, after) are multiples of, where pruned.

    1 if there is none, or if nothing was pruned.
    """
    left = [after for before, after in widths if after < before]
    return next((step for step in STEPS if left and not any(n % step for n in left)), 1)


def width_step(graph: ChannelGraph, target: float, unit: str, min_channels: int = 1) -> int:
    """The largest of 16, 8, 4 and 2 whose multiples leave room for the target, else 1.

    Runtimes compute blocks of 8 or 16 channels, and fill a layer of 17 up to the next block. In
    narrow layers multiples of 16 leave little to choose, or do not reach the target.
    """

    def most(step: int) -> float:
        return reach(graph, unit, min_channels=min_channels, round_to=step)

    needed = target + ROOM * max(0.0, most(1) - target)
    return next((step for step in STEPS if most(step) >= needed), 1)
