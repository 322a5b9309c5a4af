"""Label tensors: the label (an integer) of every channel of a tensor, and operations on them.

A label tensor has as many axes as the tensor it describes, and size 1 along every axis on which
the label is constant. So its size does not depend on the batch or the image.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

NO_PRODUCER = -1  # a channel that no layer produces: of the input image, or padded
# a channel of a filled tensor (zeros, ones): takes the label of what is written into it
UNWRITTEN = -2

TieAlong = Callable[[Tensor, int], Tensor]


def varied(label: Tensor) -> list[int]:
    """The axes along which the label varies."""
    return [axis for axis, size in enumerate(label.shape) if size > 1]


def on_axis(ids: Tensor, axis: int, ndim: int) -> Tensor:
    """A label tensor of `ndim` axes with this vector along one of them."""
    shape = [1] * ndim
    shape[axis] = ids.numel()
    return ids.view(shape)


def align(label: Tensor, ndim: int) -> Tensor:
    """Prepend axes of size 1, as broadcasting does."""
    if label.dim() == ndim:
        return label
    return label.view([1] * (ndim - label.dim()) + list(label.shape))


def same_storage(a: Tensor, b: Tensor) -> bool:
    """Do writes into one reach the other?"""
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def slice_axis(label: Tensor, axis: int, start: int, length: int, step: int = 1) -> Tensor:
    """The labels of `x.narrow(axis, start, length)`, as a view: writes reach the original."""
    if label.shape[axis] == 1:
        return label
    return label.narrow(axis, start, (length - 1) * step + 1)[
        (slice(None),) * axis + (slice(None, None, step),)
    ]


def thin(label: Tensor) -> Tensor:
    """Reduce the axes along which the label is constant to size 1."""
    for axis in varied(label):
        first = label.narrow(axis, 0, 1)
        if torch.equal(first.expand_as(label), label):
            label = first
    return label


def reshape(
    label: Tensor,
    old: Sequence[int],
    new: Sequence[int],
    tie_along: TieAlong,
    tied: Callable[[Tensor, int], bool],
) -> Tensor:
    """The labels of `x.reshape(new)` where x has shape `old`.

    Where several labelled axes merge into one, channels are tied along all of them but the longest
    (so that pruning removes whole columns of a channel shuffle). Axes along which channels are
    tied already are not the longest: the dimensions of a head. A single labelled axis merges with
    others as it is: the heads of attention with the batch.
    """
    expand, shape = list(label.shape), [1] * len(new)
    for old_axes, new_axes in _segments(old, new):
        changing = [axis for axis in old_axes if label.shape[axis] > 1]
        if not changing:
            continue
        if [old[a] for a in old_axes] == [new[a] for a in new_axes]:
            for a, b in zip(old_axes, new_axes, strict=True):
                shape[b] = label.shape[a]
            continue
        elsewhere = [axis for axis in varied(label) if axis not in old_axes]
        split_only = len(changing) == 1 and len([a for a in old_axes if old[a] > 1]) == 1
        if not split_only:
            free = changing
            if len(changing) > 1:
                loose = [axis for axis in changing if not tied(label, axis)]
                free = [max(loose or changing, key=lambda axis: old[axis])] * (not elsewhere)
            for axis in changing:
                if axis not in free:
                    label = tie_along(label, axis)
                    expand[axis] = 1
            if not free:
                continue
        for axis in old_axes:
            expand[axis] = old[axis]
        for axis in new_axes:
            shape[axis] = new[axis]
    return thin(label.expand(expand).reshape(shape))


def mixes(label: Tensor, old: Sequence[int], new: Sequence[int]) -> bool:
    """Does `x.reshape(new)`, whose labels these are, spread channels over several axes?

    As (n, c) becomes (c, h, w) without a transposition: where a channel is then depends on n. The
    batch may become a factor of the first axis.
    """
    for old_axes, axes in _segments(old, new):
        batch = old_axes[0] == 0 and new[0] % max(1, old[0]) == 0
        spread = [axis for axis in axes if label.shape[axis] > 1]
        if len(spread) > 1 and not batch:
            at = tuple(slice(None) if axis in spread else 0 for axis in range(label.dim()))
            known = label[at][label[at] >= 0]
            if known.unique().numel() < known.numel():
                return True
    return False


def _segments(old: Sequence[int], new: Sequence[int]) -> list[tuple[list[int], list[int]]]:
    """Pair the runs of axes of both shapes that have the same number of elements."""
    segments, i, j = [], 0, 0
    while i < len(old) and j < len(new):
        left, right, a, b = [i], [j], old[i], new[j]
        while a != b:
            if a < b:
                i += 1
                a *= old[i]
                left.append(i)
            else:
                j += 1
                b *= new[j]
                right.append(j)
        segments.append((left, right))
        i, j = i + 1, j + 1
    return segments  # the remaining axes have size 1
