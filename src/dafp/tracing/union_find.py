"""Which labels are tied, directly or through others: connected components."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..graph.trace_log import Tie

_PORTION = 1 << 15  # entries of ties that are solved at once


def components(total: int, ties: Sequence[Tie]) -> Tensor:
    """label -> smallest label it is tied to, over any number of ties."""
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
    """The root above each label; on the way up chains are made half as long at every step."""
    while not torch.equal(up := parent[labels], labels):
        above = parent[up]
        parent[labels] = above
        labels = above
    return labels


def _portions(ties: Sequence[Tie]) -> Iterator[list[Tie]]:
    """Some ties after others, so that memory does not grow with their number."""
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
