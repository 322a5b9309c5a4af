"""Find the groups whose pruning makes a model fail, where the cause is not known: by bisection."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

MAX_RUNS = 64  # a limit by count, not by time: the result must not depend on the machine


@dataclass(frozen=True)
class FailingGroups:
    """Groups that have to be kept whole, so that pruning the others works."""

    alone: tuple[str, ...] = ()  # fail if nothing else is pruned
    together: tuple[str, ...] = ()  # fail only if others are pruned too
    untested: tuple[str, ...] = ()  # not told apart within the number of runs

    @property
    def names(self) -> tuple[str, ...]:
        return (*self.alone, *self.together, *self.untested)


def failing_groups(
    names: Sequence[str], works: Callable[[Collection[str]], bool], max_runs: int = MAX_RUNS
) -> FailingGroups:
    """Find groups to keep whole, given that pruning all of them fails.

    All groups but these were pruned together in one run that worked. k failing groups of n need
    about 2·k·log₂(n) runs. Of groups that fail only together, the last ones are named.

    Args:
        names: the groups that the plan prunes.
        works: function of the groups to prune, while the others stay whole: does the model work?
        max_runs: groups that are not tested after so many runs count as failing.

    Examples:
        >>> from dafp.pruning.failing_groups import failing_groups
        >>> bad = {"b", "g"}
        >>> failing_groups("abcdefgh", lambda pruned: not bad & set(pruned)).alone
        ('b', 'g')
        >>> failing_groups("abcdefgh", lambda pruned: not bad <= set(pruned)).together
        ('g',)
    """
    fine: list[str] = []  # pruned together in the last run that worked
    failing: list[str] = []
    untested: list[str] = []
    runs = 0

    def search(part: Sequence[str], fails: bool) -> bool:
        """Sort a part into fine and failing; `fails`: it is known to fail. True if it works."""
        nonlocal runs
        if not fails:
            if runs == max_runs:
                untested.extend(part)
                return False
            runs += 1
            if works((*fine, *part)):
                fine.extend(part)
                return True
        if len(part) == 1:
            failing.extend(part)
            return False
        middle = len(part) // 2
        search(part[middle:], fails=search(part[:middle], fails=False))
        return False

    if names:
        search(names, fails=True)
    together = [name for name in failing[: max_runs - runs] if works((name,))]
    alone = [name for name in failing if name not in together]
    return FailingGroups(tuple(alone), tuple(together), tuple(untested))
