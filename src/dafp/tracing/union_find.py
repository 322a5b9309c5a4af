"""Connected components of tied labels, by a union-find over tensors.

`components` gives every label the smallest label it is tied to; equal numbers mean "same channel".
groups.py calls it and forms groups of the result.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..graph.trace_log import Tie

_PORTION = 1 << 15  # pairs of labels per batch of ties


class Components:
    """Components of labels, while ties are still being added."""

    def __init__(self) -> None:
        self._parent = torch.empty(0, dtype=torch.long)
        self._known = 0  # how many ties have been taken in

    def update(self, total: int, ties: Sequence[Tie]) -> None:
        """Take in the ties that came since the last call; `ties` are all of them."""
        self._parent = torch.cat([self._parent, torch.arange(len(self._parent), total)])
        parent, new = self._parent, ties[self._known :]
        self._known = len(ties)
        for some in _portions(new):
            a, b = (torch.cat([getattr(tie, end) for tie in some]) for end in "ab")
            while True:
                a, b = _roots(parent, a), _roots(parent, b)
                apart = a != b
                if not bool(apart.any()):
                    break
                a, b = a[apart], b[apart]
                parent.scatter_reduce_(0, torch.maximum(a, b), torch.minimum(a, b), "amin")

    def of(self, labels: Tensor) -> Tensor:
        """The smallest label that each label is tied to."""
        return _roots(self._parent, labels)


def components(total: int, ties: Sequence[Tie]) -> Tensor:
    """label -> the smallest label it is tied to, directly or through other labels."""
    found = Components()
    found.update(total, ties)
    return found.of(torch.arange(total))


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
