"""Selection rules: functions that turn scores into a plan of the channels to keep."""

from collections.abc import Callable, Mapping
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from ..criteria.scores import Scores
from ..errors import PlanError
from ..graph.plan import PruningPlan

Rule = Callable[..., PruningPlan]


def local_threshold(
    scores: Scores, p: float, *, min_channels: int = 1, round_to: int = 1
) -> PruningPlan:
    """Remove the channels with S_c ≤ p · max S of their own group (Eq. 6).

    Args:
        scores: group name -> one score per channel, from a criterion
        p: the threshold, as a share of the highest score of each group
        min_channels: number of channels that every group keeps at least
        round_to: the number of kept channels is rounded up to a multiple of this

    Returns:
        The plan: which channels of each group are kept.

    Example:
        >>> scores = {
        ...     "conv1": torch.tensor([0.10, 0.01, 0.03, 0.15]),
        ...     "conv2": torch.tensor([1.0, 100.0, 2.0, 200.0]),
        ... }
        >>> print(dafp.selection.local_threshold(scores, p=0.3).keep)
        {'conv1': (0, 3), 'conv2': (1, 3)}
    """
    check_share("p", p)
    drop = {
        name: int((score <= p * score.max()).sum()) if score.numel() else 0
        for name, score in _checked(scores).items()
    }
    return _drop_lowest(scores, drop, min_channels, round_to)


def global_ranking(
    scores: Scores, ratio: float, *, min_channels: int = 1, round_to: int = 1
) -> PruningPlan:
    """Remove the share `ratio` of all channels, lowest scores first, in whichever group they are.

    Args:
        scores: group name -> one score per channel, from a criterion
        ratio: share of all channels to remove
        min_channels: number of channels that every group keeps at least
        round_to: the number of kept channels is rounded up to a multiple of this

    Returns:
        The plan: which channels of each group are kept.

    Example:
        >>> scores = {
        ...     "conv1": torch.tensor([0.10, 0.01, 0.03, 0.15]),
        ...     "conv2": torch.tensor([1.0, 100.0, 2.0, 200.0]),
        ... }
        >>> print(dafp.selection.global_ranking(scores, ratio=0.5).keep)
        {'conv1': (3,), 'conv2': (0, 1, 2, 3)}

        The four lowest scores are those of `conv1`; min_channels=1 keeps the highest of them.
    """
    check_share("ratio", ratio)
    flat = torch.cat([s.double().cpu() for s in _checked(scores).values()])
    count = round(ratio * flat.numel())
    order = flat.argsort(stable=True)[:count]
    owner = torch.arange(len(scores)).repeat_interleave(
        torch.tensor([s.numel() for s in scores.values()])
    )
    counts = torch.bincount(owner[order], minlength=len(scores)).tolist()
    return _drop_lowest(scores, dict(zip(scores, counts, strict=True)), min_channels, round_to)


def uniform(
    scores: Scores, ratio: float, *, min_channels: int = 1, round_to: int = 1
) -> PruningPlan:
    """Remove round(ratio · C) channels of every group, lowest scores first.

    Args:
        scores: group name -> one score per channel, from a criterion
        ratio: share of the channels to remove in each group
        min_channels: number of channels that every group keeps at least
        round_to: the number of kept channels is rounded up to a multiple of this

    Returns:
        The plan: which channels of each group are kept.

    Example:
        >>> scores = {
        ...     "conv1": torch.tensor([0.10, 0.01, 0.03, 0.15]),
        ...     "conv2": torch.tensor([1.0, 100.0, 2.0, 200.0]),
        ... }
        >>> print(dafp.selection.uniform(scores, ratio=0.25).keep)
        {'conv1': (0, 2, 3), 'conv2': (1, 2, 3)}
    """
    check_share("ratio", ratio)
    drop = {name: round(ratio * s.numel()) for name, s in _checked(scores).items()}
    return _drop_lowest(scores, drop, min_channels, round_to)


def _drop_lowest(
    scores: Scores, drop: dict[str, int], min_channels: int, round_to: int
) -> PruningPlan:
    """Remove drop[name] channels of each group, lowest first, ties by lower index.

    At least `min_channels` are kept.
    """
    numbers = (min_channels, round_to)
    if not all(isinstance(n, Integral) for n in numbers) or min_channels < 0 or round_to < 1:
        raise PlanError(
            f"min_channels={min_channels!r}, round_to={round_to!r}: they must be whole numbers, at "
            "least 0 and 1"
        )
    keep, spare = {}, {}
    for name, score in scores.items():
        size = score.numel()
        left = max(size - drop[name], min(min_channels, size))
        left = min(size, -(-left // round_to) * round_to)
        order = score.argsort(stable=True).tolist()
        keep[name] = tuple(sorted(order[size - left :]))
        spare[name] = tuple(reversed(order[: size - left]))
    return PruningPlan(keep, {name: s.numel() for name, s in scores.items()}, spare)


def check_share(name: str, value: Any) -> None:
    if not isinstance(value, Real):
        raise PlanError(
            f"{name}={value!r} is a {type(value).__name__}, no plain number; give a share between "
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
