"""Rules of elementwise operators, pooling, reductions and softmax."""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...network.leaves import leaves
from ..call import Call
from ..label_tracker import ChannelInfo
from ..labels import NO_PRODUCER, UNWRITTEN, varied

aten = torch.ops.aten


def pointwise(call: Call) -> None:
    out = leaves(call.out)[0]
    ndim = out.dim()
    operands = [t for t in call.tensors if t.dim() > 0]
    labelled = [t for t in operands if call.tracker.facets(t)]
    # the output takes the labels of the operand that is not broadcast: its scale is the nearest one
    labelled.sort(key=lambda t: (call.is_weight(t), -t.numel()))
    facets = [call.broadcast(t, ndim) for t in labelled]
    kept = [facet for tensor in operands for facet in meet_unlabelled(call, tensor, facets, ndim)]
    if len(facets) == 1 and len(facets[0]) > 1 and _lifts_zero(call):
        call.keep("weights are computed from it that are not zero where it is")
    _tie_to_constants(call, labelled, facets)
    residual = call.func.overloadpacket in _ADDITIONS and len(labelled) == 2
    residual = residual and not any(call.is_weight(t) for t in labelled)
    merged = meet(call, facets, ndim, "add" if residual else "same")
    if len(merged) > 1 and not all(map(call.is_weight, labelled)):
        merged = [facet for facet in merged if not _is_position(facet, kept)]
    steps = None
    activations = [t for t in labelled if not call.is_weight(t)]
    if len(activations) == 1 and activations[0] is call.args[0]:
        steps = call.step(activations[0])
    call.tracker.set_info(out, ChannelInfo(tuple(merged), not activations, steps))


def _is_position(facet: Tensor, kept: list[Tensor]) -> bool:
    """Is this an axis of positions: of a table of weights, or of a mask that is filled in?"""
    return any(facet is one for one in kept) or bool((facet == UNWRITTEN).all())


def _tie_to_constants(call: Call, labelled: list[Tensor], facets: list[list[Tensor]]) -> None:
    """Take buffers out of `facets` that are the same for all heads: rotations by position.

    One entry of the buffer belongs to a dimension of every head. So it stays, and the dimensions of
    a head are tied.
    """
    wide = [
        f for t, own in zip(labelled, facets, strict=True) if not call.is_weight(t) for f in own
    ]
    for tensor, own in zip(labelled, facets, strict=True):
        for facet in list(own) if call.is_weight(tensor) else ():
            axes = set(varied(facet))
            others = [f for f in wide if axes < set(varied(f))]
            block = call.tracker.log.block_at(int(facet.max())) if others else None
            if block is not None and block.tensor in call.tracker.buffers:
                own[:] = [f for f in own if f is not facet]
                call.tracker.keep(facet, call.where, "it belongs to a buffer that all heads share")
                for other in others:
                    for axis in axes:
                        call.tracker.tie_along(other, axis, call.where)


def _lifts_zero(call: Call) -> bool:
    """Is this a function f of one weight with f(0) ≠ 0? Then zeroing the weight masks nothing."""
    if len(call.tensors) > 1 or not call.is_weight(call.tensors[0]):
        return False
    rest = [torch.zeros(1) if isinstance(v, Tensor) else v for v in call.args]
    return bool((call.func(*rest, **call.kwargs) != 0).any())


_ADDITIONS = (aten.add, aten.add_, aten.sub, aten.sub_, aten.rsub)


def meet(call: Call, groups: list[list[Tensor]], ndim: int, kind: str = "same") -> list[Tensor]:
    """Tie the facets that share an axis; return one of them, with the facets of other axes."""
    merged: list[Tensor] = []
    for facets in groups:
        for facet in facets:
            axes = set(varied(facet))
            match = next((i for i, m in enumerate(merged) if axes & set(varied(m))), None)
            if match is None:
                merged.append(facet)
                continue
            old = merged[match]
            call.tracker.tie(kind, old, facet, call.where)
            for axis in set(varied(old)) ^ axes:
                wide = old if old.shape[axis] > 1 else facet
                narrow = call.tracker.tie_along(wide, axis, call.where)
                old, facet = (narrow, facet) if wide is old else (old, narrow)
            if kind == "add" and not torch.equal(old, facet):
                old = call.tracker.sum_of(old, facet, call.where)
            old = torch.where(old == UNWRITTEN, facet, old)
            merged[match] = old
    return merged


def meet_unlabelled(
    call: Call, tensor: Tensor, groups: list[list[Tensor]], ndim: int
) -> list[Tensor]:
    """Keep channels that are combined with a tensor of the same width that has no labels.

    Where channels are on other axes too, they are tied along this one: a rotation of the dimensions
    of a head lets whole heads go. Returns the facets that are kept.
    """
    kept = []
    shape = [1] * (ndim - tensor.dim()) + list(tensor.shape)
    own = {axis for f in call.broadcast(tensor, ndim) for axis in varied(f)}
    for facet in (facet for facets in groups for facet in facets):
        axes = [axis for axis in varied(facet) if shape[axis] > 1 and axis not in own]
        if len(axes) == len(varied(facet)) and axes:
            call.tracker.keep(facet, call.where, "combined with channels that no layer produces")
            kept.append(facet)
        else:
            for axis in axes:
                call.tracker.tie_along(facet, axis, call.where)
    return kept


def unary(call: Call) -> None:
    """Clone, cast, detach, dropout: the output has all the labels of the input."""
    info = call.tracker.info.get(call.args[0])
    out = leaves(call.out)[0]
    if info is not None:
        call.tracker.set_info(out, ChannelInfo(info.facets, info.is_weight, info.steps, info.name))


def image_only(call: Call) -> None:
    """Pooling and resizing: mix the last axes; "2d" in the operator's name says how many."""
    x = call.args[0]
    name = call.func.overloadpacket.__name__
    count = next((n for n in (1, 2, 3) if f"{n}d" in name), 2)
    axes = range(x.dim() - count, x.dim())
    reason = "its channels are on an image axis"
    along(call, x, axes, leaves(call.out)[0], reason, tie=False, same_mean="max" not in name)


def per_channel(call: Call) -> None:
    """roi_align: every channel on axis 1 is computed from its own image alone."""
    x = call.args[0]
    along(call, x, (0, 2, 3), call.out, "its channels are on an image axis", tie=False)


def pad(call: Call) -> None:
    x, amounts = call.args[0], call.args[1]
    facets = list(call.tracker.facets(x))
    for i in range(len(amounts) // 2):
        axis, before, after = x.dim() - 1 - i, amounts[2 * i], amounts[2 * i + 1]
        for n, facet in enumerate(facets):
            if facet.shape[axis] == 1 or (before, after) == (0, 0):
                continue
            facet = facet.narrow(
                axis, max(0, -before), facet.shape[axis] + min(0, before) + min(0, after)
            )
            sides = []
            for amount in (max(0, before), max(0, after)):
                shape = list(facet.shape)
                shape[axis] = amount
                sides.append(torch.full(shape, NO_PRODUCER))
            facets[n] = torch.cat([sides[0], facet, sides[1]], axis)
    call.set(call.out, facets, like=x)


def reduction(call: Call) -> None:
    x = call.args[0]
    dims = call.arg("dim")
    out = leaves(call.out)
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        call.keep("reduced over all its channels")
        return
    dims = [d % x.dim() for d in (dims if isinstance(dims, (list, tuple)) else [dims])]
    keepdim = out[0].dim() == x.dim()
    facets = []
    for facet in call.tracker.facets(x):
        facet = tie_or_keep(call, facet, dims, "reduced over its channels")
        if not keepdim:
            facet = facet.view([s for axis, s in enumerate(facet.shape) if axis not in dims])
        facets.append(facet)
    averages = call.func.overloadpacket is aten.mean
    for tensor in out:
        call.set(tensor, facets, like=x, same_mean=averages)


def softmax(call: Call) -> None:
    x = call.args[0]
    along(call, x, [call.args[1] % x.dim()], call.out, "softmax over the channels", tie=True)


def along(
    call: Call,
    x: Tensor,
    axes: Sequence[int],
    out: Tensor,
    reason: str,
    *,
    tie: bool,
    same_mean: bool = False,
) -> None:
    """Label the output of an operator that mixes entries along these axes only.

    Channels on these axes are kept, or tied where possible if `tie` is True.
    """
    facets = []
    for facet in call.tracker.facets(x):
        if any(facet.shape[axis] > 1 for axis in axes):
            if tie:
                tie_or_keep(call, facet, list(axes), reason)
            else:
                call.tracker.keep(facet, call.where, reason)
                continue
        facets.append(facet)
    call.set(out, facets, like=x, same_mean=same_mean)


def tie_or_keep(call: Call, facet: Tensor, dims: list[int], reason: str) -> Tensor:
    """Tie along the mixed axes if another axis carries channels too, else keep."""
    mixed = [d for d in dims if facet.shape[d] > 1]
    if mixed and not [axis for axis in varied(facet) if axis not in dims]:
        call.tracker.keep(facet, call.where, reason)
        for d in mixed:
            facet = facet.narrow(d, 0, 1)
        return torch.full_like(facet, NO_PRODUCER)
    for d in mixed:
        facet = call.tracker.tie_along(facet, d, call.where)
    return facet
