"""Connected components of tied labels, by a union-find over tensors.

`components` gives every label the smallest label it is tied to; equal numbers mean "same channel".
groups.py calls it and forms groups of the result.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..graph.trace_log import Tie

_PORTION = 1 << 15  # pairs of labels per batch of ties


def components(total: int, ties: Sequence[Tie]) -> Tensor:
    """label -> the smallest label it is tied to, directly or through other labels."""
    parent = torch.arange(total)
    for some in _portions(ties):
        a, b = (torch.cat([getattr(tie, end) for tie in some]) for end in "ab")
        while True:
            a, b = _roots(parent, a), _roots(parent, b)
            apart = a != b
            if not bool(apart.any()):
                break
            a, b = a[apart], b[apart]
            parent.scatter_reduce_(0, torch.maximum(a, b), torch.minimum(a, b), "amin")
    return _roots(parent, torch.arange(total))


def _roots(parent: Tensor, labels: Tensor) -> Tensor:
    """The root of each label. Path halving shortens the chains on the way."""
    while not torch.equal(up := parent[labels], labels):
        above = parent[up]
        parent[labels] = above
        labels = above
    return labels


def _portions(ties: Sequence[Tie]) -> Iterator[list[Tie]]:
    """Batches of ties, so that memory does not grow with their number."""
    some: list[Tie] = []
    entries = 0
    for tie in ties:
        some.append(tie)
        entries += tie.a.numel()
        if entries >= _PORTION:
            yield some
            some, entries = [], 0
    if some:
        yield some
