"""Rules of operators that move data: labels move in the same way. Also in-place writes."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...network.leaves import leaves
from ..call import Call
from ..labels import NO_PRODUCER, UNWRITTEN, align, on_axis, reshape, slice_axis, varied
from .pointwise import along, meet, meet_unlabelled


def view(call: Call) -> None:
    x = call.args[0]
    facets = [
        reshape(
            f,
            x.shape,
            call.out.shape,
            lambda label, axis: call.tracker.tie_along(label, axis, call.where),
            call.tracker.tied_along,
        )
        for f in call.tracker.facets(x)
    ]
    for facet in facets if not call.is_weight(x) else ():
        call.tracker.keep_mixed(facet, x.shape, call.out.shape, call.where)
    call.set(call.out, facets, like=x)


def rearrange(call: Call) -> None:
    """permute, transpose, t, flip, unsqueeze: run the operator on the label tensors."""
    x = call.args[0]
    facets = [call.func(f, *call.args[1:], **call.kwargs) for f in call.tracker.facets(x)]
    call.set(call.out, facets, like=x)


def squeeze(call: Call) -> None:
    x = call.args[0]
    dims = call.args[1] if len(call.args) > 1 else range(x.dim())
    dims = [d % x.dim() for d in ([dims] if isinstance(dims, int) else dims)]
    gone = [d for d in dims if x.shape[d] == 1]
    facets = [
        f.reshape([s for axis, s in enumerate(f.shape) if axis not in gone])
        for f in call.tracker.facets(x)
    ]
    call.set(call.out, facets, like=x)


def expand(call: Call) -> None:
    x = call.args[0]
    call.set(call.out, [align(f, call.out.dim()) for f in call.tracker.facets(x)], like=x)


def take_slice(call: Call) -> None:
    x, axis = call.args[0], call.arg("dim") % call.args[0].dim()
    start, step = call.arg("start") or 0, call.arg("step") or 1
    start = max(0, start + x.shape[axis]) if start < 0 else min(start, x.shape[axis])
    length = call.out.shape[axis]
    whole = [f for f in call.tracker.facets(x) if length or f.shape[axis] == 1]
    facets = [slice_axis(f, axis, start, length, step) for f in whole]
    for facet, part in zip(whole, facets, strict=True):
        _keep_single(call, facet, part)
    call.set(call.out, facets, like=x)


def select(call: Call) -> None:
    x, axis, position = call.args[0], call.args[1] % call.args[0].dim(), call.args[2]
    facets = []
    for facet in call.tracker.facets(x):
        part = facet.select(axis, 0 if facet.shape[axis] == 1 else position % x.shape[axis])
        _keep_single(call, facet, part)
        facets.append(part)
    call.set(call.out, facets, like=x)


def _keep_single(call: Call, whole: Tensor, part: Tensor) -> None:
    """Keep all channels if one is taken: its label tensor cannot be told from a broadcast one."""
    if part.numel() == 1 < whole.numel():
        call.tracker.keep(whole, call.where, "a single channel is taken by its position")


def split(call: Call) -> None:
    x, axis, start = call.args[0], call.arg("dim", 0) % call.args[0].dim(), 0
    for part in call.out:
        length = part.shape[axis]
        facets = [slice_axis(f, axis, start, length) for f in call.tracker.facets(x)]
        call.set(part, facets, like=x)
        start += length


def unbind(call: Call) -> None:
    x, axis = call.args[0], call.arg("dim", 0) % call.args[0].dim()
    for position, part in enumerate(call.out):
        facets = [
            f.select(axis, 0 if f.shape[axis] == 1 else position) for f in call.tracker.facets(x)
        ]
        call.set(part, facets, like=x)


def cat(call: Call) -> None:
    parts = [t for t in call.args[0] if t.numel()]
    parts = parts or [t for t in call.args[0] if t.dim() == call.out.dim()]  # no box was found
    axis = call.arg("dim", 0) % call.out.dim()
    _join(call, parts, [call.tracker.facets(t) for t in parts], axis, stacked=False)


def stack(call: Call) -> None:
    parts = call.args[0]
    axis = call.arg("dim", 0) % call.out.dim()
    facets = [tuple(f.unsqueeze(axis) for f in call.tracker.facets(t)) for t in parts]
    _join(call, parts, facets, axis, stacked=True)


def _join(
    call: Call,
    parts: Sequence[Tensor],
    groups: Sequence[tuple[Tensor, ...]],
    axis: int,
    *,
    stacked: bool,
) -> None:
    """Concatenate labels along `axis`; tie the labels of the parts on other axes."""
    groups = [_without_positions(call, t, g, axis) for t, g in zip(parts, groups, strict=True)]
    joined = stacked or any(f.shape[axis] > 1 for facets in groups for f in facets)
    if any(len(facets) > 1 for facets in groups):
        call.keep("joins tensors with channels on several axes")
        return
    like = parts[0] if all(call.is_weight(t) for t in parts) else None
    if not joined:
        for i, tensor in enumerate(parts):
            if not groups[i]:
                others = [list(g) for g in groups if g]
                meet_unlabelled(call, tensor, others, call.out.dim())
        call.set(call.out, meet(call, [list(g) for g in groups], call.out.dim()), like=like)
        return
    width = [max([f.shape[a] for g in groups for f in g], default=1) for a in range(call.out.dim())]
    pieces = []
    for tensor, facets in zip(parts, groups, strict=True):
        shape = list(width)
        shape[axis] = 1 if stacked else tensor.shape[axis]
        filler = torch.full([1] * len(shape), NO_PRODUCER)
        pieces.append((facets[0] if facets else filler).expand(shape))
    call.set(call.out, [torch.cat(pieces, axis)], like=like)


def _without_positions(
    call: Call, tensor: Tensor, facets: tuple[Tensor, ...], axis: int
) -> tuple[Tensor, ...]:
    """The facets, without those of weights on the joined axis if others have the channels.

    Such an axis holds positions: of a table of biases, or of tokens that come before the others.
    """
    if len(facets) < 2 or not call.is_weight(tensor):
        return facets
    for facet in facets:
        if varied(facet) == [axis]:
            call.tracker.keep(facet, call.where, "positions of a table of weights")
    return tuple(facet for facet in facets if varied(facet) != [axis])


def repeat(call: Call) -> None:
    x, times = call.args[0], call.args[1]
    facets = []
    for facet in call.tracker.facets(x):
        facet = align(facet, len(times))
        facets.append(facet.repeat([t if facet.shape[a] > 1 else 1 for a, t in enumerate(times)]))
    call.set(call.out, facets, like=x)


def roll(call: Call) -> None:
    """Keep rolled channels: removing one would change the order of the others."""
    x, dims = call.args[0], call.arg("dims")
    axes = [d % x.dim() for d in dims] if dims else range(x.dim())
    along(call, x, axes, call.out, "its channels are rolled", tie=False)


def glu(call: Call) -> None:
    """The first half of an axis is multiplied by the second: tie the halves."""
    x, axis = call.args[0], call.arg("dim", -1) % call.args[0].dim()
    facets = []
    for facet in call.tracker.facets(x):
        if facet.shape[axis] > 1:
            half = facet.shape[axis] // 2
            a, b = facet.narrow(axis, 0, half), facet.narrow(axis, half, half)
            call.tracker.tie("same", a, b, call.where)
            facet = a
        facets.append(facet)
    call.set(call.out, facets, like=x)


def weight_norm(call: Call) -> None:
    """g · v / ‖v‖: the norm is taken over all axes but one; only that one can be sliced."""
    v, g, axis = call.args[0], call.args[1], call.arg("dim")
    made = call.channels(v, axis)
    for facet in call.others(v, axis):
        call.tracker.keep(facet, call.where, "a norm is taken over it")
    if made is not None:
        call.follow(made, g, axis)
        call.set(leaves(call.out)[0], [on_axis(made, axis, v.dim())], like=v)


def channel_shuffle(call: Call) -> None:
    x, groups = call.args[0], call.args[1]
    source = call.channels(x, 1)
    if source is None:
        return
    call.tracker.tie_along(source.view(groups, -1), 0, call.where)
    call.set(call.out, [on_axis(source.view(groups, -1).t().reshape(-1), 1, x.dim())], like=x)


def pixel_shuffle(call: Call) -> None:
    x, factor = call.args[0], call.args[1]
    source = call.channels(x, -3)
    if source is None:
        return
    label = call.tracker.tie_along(source.view(-1, factor * factor), 1, call.where)
    call.set(call.out, [on_axis(label.reshape(-1), x.dim() - 3, x.dim())])


def pixel_unshuffle(call: Call) -> None:
    x, factor = call.args[0], call.args[1]
    source = call.channels(x, -3)
    if source is not None:
        label = source.repeat_interleave(factor * factor)
        call.set(call.out, [on_axis(label, x.dim() - 3, x.dim())])


def write(call: Call) -> None:
    """copy_ into a tensor or a view of it: labels are copied into those of the base tensor."""
    write_values(call, call.args[0], call.args[1])


def write_values(call: Call, target: Tensor, source: Tensor) -> None:
    labels, new = call.tracker.facets(target), call.broadcast(source, target.dim())
    if not new:
        meet_unlabelled(call, source, [list(labels)], target.dim())
        return
    if len(labels) != 1 or len(new) != 1 or set(varied(labels[0])) != set(varied(new[0])):
        call.keep("written in a way that cannot be followed")
        return
    old = labels[0]
    info = call.tracker.info.get(target)
    if bool((old == UNWRITTEN).any()) and not (info is not None and info.linked):
        call.keep("written through a view that cannot be followed")
        return
    call.tracker.tie("same", old, new[0], call.where)
    old.copy_(torch.where(old == UNWRITTEN, new[0], old))


def factory(call: Call) -> None:
    """new_zeros, zeros_like: a new tensor that takes the labels of what is written into it."""
    like = call.tracker.facets(call.args[0]) if call.where.op.endswith("_like") else ()
    call.tracker.label_filled_tensor(call.out, next((varied(f)[0] for f in like if varied(f)), 1))


def restride(call: Call) -> None:
    """as_strided_ with the shape that it has: a pool gives its output another memory format."""
    if tuple(call.args[1]) != call.args[0].shape:
        call.keep("viewed in a way that cannot be followed")


def untouched(call: Call) -> None:
    """fill_, zero_, bernoulli_: values change, labels do not."""
