"""Selection rules: functions that turn scores into a plan of the channels to keep."""

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from ..criteria.scores import Scores
from ..errors import PlanError
from ..graph.plan import PruningPlan

AUTO_STEP = 8  # round_to="auto": PyTorch and ONNX Runtime compute blocks of 8 channels on CPUs

Rule = Callable[..., PruningPlan]
RoundTo = int | str  # a number, or "auto"
Counts = Callable[[float], list[int]]  # strength of a rule -> channels to remove of each group


def local_threshold(
    scores: Scores, p: float, *, min_channels: int = 1, round_to: RoundTo = 1
) -> PruningPlan:
    """Remove the channels with S_c ≤ p · max S of their own group (Eq. 6).

    Args:
        scores: group name -> one score per channel, from a criterion
        p: the threshold, as a share of the highest score of each group
        min_channels: minimum number of channels that every group keeps
        round_to: the number of kept channels is rounded up to a multiple of this; "auto": of 8

    Returns:
        The plan: which channels of each group are kept.

    Examples:
        >>> scores = {
        ...     "conv1": torch.tensor([0.10, 0.01, 0.03, 0.15]),
        ...     "conv2": torch.tensor([1.0, 100.0, 2.0, 200.0]),
        ... }
        >>> print(dafp.selection.local_threshold(scores, p=0.3).keep)
        {'conv1': (0, 3), 'conv2': (1, 3)}
    """
    check_share("p", p)
    return _plan(scores, _counts_by_threshold, p, min_channels, round_to)


def global_ranking(
    scores: Scores, ratio: float, *, min_channels: int = 1, round_to: RoundTo = 1
) -> PruningPlan:
    """Remove the share `ratio` of all channels, lowest scores of all groups first.

    Args:
        scores: group name -> one score per channel, from a criterion
        ratio: share of all channels to remove
        min_channels: minimum number of channels that every group keeps
        round_to: the number of kept channels is rounded up to a multiple of this; "auto": of 8

    Returns:
        The plan: which channels of each group are kept.

    Examples:
        >>> scores = {
        ...     "conv1": torch.tensor([0.10, 0.01, 0.03, 0.15]),
        ...     "conv2": torch.tensor([1.0, 100.0, 2.0, 200.0]),
        ... }
        >>> print(dafp.selection.global_ranking(scores, ratio=0.5).keep)
        {'conv1': (3,), 'conv2': (0, 1, 2, 3)}

        The four lowest scores are those of `conv1`; min_channels=1 keeps the highest of them.
    """
    check_share("ratio", ratio)
    return _plan(scores, _counts_by_ranking, ratio, min_channels, round_to)


def uniform(
    scores: Scores, ratio: float, *, min_channels: int = 1, round_to: RoundTo = 1
) -> PruningPlan:
    """Remove round(ratio · C) channels of every group, lowest scores first.

    Args:
        scores: group name -> one score per channel, from a criterion
        ratio: share of the channels to remove in each group
        min_channels: minimum number of channels that every group keeps
        round_to: the number of kept channels is rounded up to a multiple of this; "auto": of 8

    Returns:
        The plan: which channels of each group are kept.

    Examples:
        >>> scores = {
        ...     "conv1": torch.tensor([0.10, 0.01, 0.03, 0.15]),
        ...     "conv2": torch.tensor([1.0, 100.0, 2.0, 200.0]),
        ... }
        >>> print(dafp.selection.uniform(scores, ratio=0.25).keep)
        {'conv1': (0, 2, 3), 'conv2': (1, 2, 3)}
    """
    check_share("ratio", ratio)
    return _plan(scores, _counts_by_share, ratio, min_channels, round_to)


def removal_counts(rule: Rule, scores: Scores) -> Counts | None:
    """strength -> how many channels a rule of dafp removes from each group; None for other rules.

    What does not depend on the strength is computed once, by this call.
    """
    if rule is local_threshold:
        return _counts_by_threshold(_checked(scores))
    if rule is global_ranking:
        return _counts_by_ranking(_checked(scores))
    if rule is uniform:
        return _counts_by_share(_checked(scores))
    return None


class LowestFirst:
    """Removes channels of each group, lowest scores first; of equal scores, the lower index.

    At least `min_channels` are kept, and a multiple of `round_to` (or the whole group).
    """

    def __init__(self, scores: Scores, min_channels: Any, round_to: RoundTo) -> None:
        self.step = step_of(round_to)
        if not isinstance(min_channels, Integral) or min_channels < 0:
            raise PlanError(f"min_channels={min_channels!r} must be a whole number, at least 0")
        self.order = {name: score.argsort(stable=True).tolist() for name, score in scores.items()}
        self.min_channels = int(min_channels)

    def removed(self, counts: list[int]) -> dict[str, tuple[int, ...]]:
        """The channels to remove, at most `counts` of each group; most important first."""
        found = {}
        for (name, order), count in zip(self.order.items(), counts, strict=True):
            size = len(order)
            left = allowed_width(size, size - count, self.min_channels, self.step)
            found[name] = tuple(reversed(order[: size - left]))
        return found


def step_of(round_to: Any) -> int:
    """The number that widths must be multiples of; PlanError unless it is one, or "auto"."""
    if round_to == "auto":
        return AUTO_STEP
    if not isinstance(round_to, Integral) or round_to < 1:
        raise PlanError(
            f"round_to={round_to!r} must be a whole number, at least 1, or 'auto', which is "
            f"{AUTO_STEP}"
        )
    return int(round_to)


def allowed_width(size: int, left: int, min_channels: int, step: int) -> int:
    """`left` of `size` channels, raised to `min_channels` and to a multiple of `step`."""
    return min(size, -(-max(left, min_channels) // step) * step)


def _plan(
    scores: Scores,
    counts: Callable[[Scores], Counts],
    strength: float,
    min_channels: int,
    round_to: RoundTo,
) -> PruningPlan:
    count = counts(_checked(scores))(strength)
    removed = LowestFirst(scores, min_channels, round_to).removed(count)
    sizes = {name: score.numel() for name, score in scores.items()}
    keep = {
        name: tuple(sorted(set(range(size)) - set(removed[name]))) for name, size in sizes.items()
    }
    return PruningPlan(keep, sizes, removed)


def _counts_by_threshold(scores: Scores) -> Counts:
    """Eq. 6: the channels at or below p · max of their own group."""
    with_best = [(score, score.max() if score.numel() else None) for score in scores.values()]
    return lambda p: [
        0 if best is None else int((score <= p * best).sum()) for score, best in with_best
    ]


def _counts_by_ranking(scores: Scores) -> Counts:
    """The lowest scores of all groups together."""
    flat = torch.cat([score.double().cpu() for score in scores.values()])
    sizes = torch.tensor([score.numel() for score in scores.values()])
    owners = torch.arange(len(sizes)).repeat_interleave(sizes)[flat.argsort(stable=True)]
    return lambda ratio: torch.bincount(
        owners[: round(ratio * len(owners))], minlength=len(sizes)
    ).tolist()


def _counts_by_share(scores: Scores) -> Counts:
    """The same share of every group."""
    return lambda ratio: [round(ratio * score.numel()) for score in scores.values()]


def check_share(name: str, value: Any) -> None:
    if not isinstance(value, Real):
        raise PlanError(
            f"{name}={value!r} is a {type(value).__name__}, not a number; give a share between "
            f"0 and 1, e.g. {name}=0.5 for one half"
        )
    if not 0 < float(value) < 1:
        raise PlanError(
            f"{name}={value!r} is outside (0, 1); it is a share, e.g. {name}=0.5 for one half"
        )


def _checked(scores: Scores) -> Scores:
    check_scores(scores)
    if not scores:
        raise PlanError("there are no scores: the graph has no group that can be pruned")
    for name, score in scores.items():
        if score.dim() != 1 or not bool(torch.isfinite(score).all()) or bool((score < 0).any()):
            raise PlanError(
                f"scores of {name!r} must be one finite, non-negative number per channel"
            )
    return scores


def check_scores(scores: Scores) -> None:
    """Raise unless scores map group names to tensors: a criterion may be the user's own."""
    if not isinstance(scores, Mapping):
        raise PlanError(
            f"scores are a {type(scores).__name__}; a criterion returns a tensor of scores for "
            "each group: {group.name: torch.tensor([…])}"
        )
    for name, score in scores.items():
        if not isinstance(score, Tensor):
            raise PlanError(
                f"scores of {name!r} are a {type(score).__name__}; give a tensor with one number "
                "per channel"
            )
