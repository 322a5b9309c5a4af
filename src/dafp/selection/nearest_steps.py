"""Come near to a target with wide steps: leave out one that is too wide, and go on."""

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

Step = TypeVar("Step")


def nearest_steps(
    steps: Sequence[Step],
    count: int,
    owner: Callable[[Step], Hashable],
    share: Callable[[list[Step]], float],
    target: float,
) -> list[Step]:
    """The first `count` steps, and those after them that bring the share nearest to the target.

    Wide steps may lead beyond the target; then those of other groups are tried, in their order. A
    group whose next step does not fit stays as wide as it is.
    """
    taken, done = list(steps[:count]), set[Hashable]()
    best, least = taken, abs(share(taken) - target)
    for step in steps[count:]:
        if owner(step) in done:
            continue
        tried = [*taken, step]
        reached = share(tried)
        if abs(reached - target) < least:
            best, least = tried, abs(reached - target)
        if reached <= target:
            taken = tried
        else:
            done.add(owner(step))
    return best
