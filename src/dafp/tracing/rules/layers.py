"""Rules of convolutions, matrix products and normalisation layers."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ...network.leaves import leaves
from ..call import Call
from ..label_tracker import ChannelInfo
from ..labels import on_axis, varied
from .pointwise import along, meet, tie_or_keep

aten = torch.ops.aten


def convolution(call: Call) -> None:
    x, weight, bias = call.args[0], call.args[1], call.args[2]
    transposed, groups = call.args[6], call.args[8]
    if x.dim() == weight.dim() - 1:  # no batch axis
        call.keep("it goes into a convolution without a batch axis", [x])
        return
    for facet in call.others(x, 1):
        if any(axis >= 2 for axis in varied(facet)):
            call.tracker.keep(facet, call.where, "convolved over channels on an image axis")
    in_dim, out_dim = (0, 1) if transposed else (1, 0)
    source = call.channels(x, 1)
    per_group = x.shape[1] // groups
    positions = (x if transposed else call.out).shape
    constant = positions[0] * math.prod(positions[2:]) * math.prod(weight.shape[2:])
    call.tracker.note_shift(weight, bias)
    sized = [call.channels(weight, d) for d in (0, 1)]
    constant *= math.prod(weight.shape[d] for d in (0, 1) if sized[d] is None)
    call.count(constant, *sized)
    if groups == 1:
        call.consume(source, weight, in_dim, out_dim, x)
        made = call.produce(weight, out_dim)
    elif per_group == 1:
        made = _depthwise(call, source, weight, groups, transposed)
    else:
        made = _grouped(call, source, x, weight, groups, transposed)
    if made is None:
        return
    if bias is not None:
        call.follow(made, bias)
    call.tracker.set_info(call.out, ChannelInfo((on_axis(made, 1, call.out.dim()),)))


def _depthwise(
    call: Call, source: Tensor | None, weight: Tensor, groups: int, transposed: bool
) -> Tensor | None:
    """Each input channel has `times` output channels of its own, which carry its label."""
    times = call.out.shape[1] // groups
    own = call.channels(weight, 0)
    if source is None:
        if own is not None:
            call.tracker.keep(own, call.where, "filters the model's input channel by channel")
        return None
    passed = source.repeat_interleave(times)
    if own is None:
        call.tracker.keep(source, call.where, "filtered by weights from outside the model")
    else:
        call.tracker.tie("same", source if transposed else passed, own, call.where)
    return passed


def _grouped(
    call: Call, source: Tensor | None, x: Tensor, weight: Tensor, groups: int, transposed: bool
) -> Tensor | None:
    """Tie channels at the same position of each group."""
    if source is not None:
        call.tracker.tie_along(source.view(groups, -1), 0, call.where)
    if transposed:
        own = call.channels(weight, 0)
        if own is not None:
            call.tracker.tie_along(own.view(groups, -1), 0, call.where)
        call.consume(source, weight, 0, 1, x)
        made = call.produce(weight, 1)
        return made.repeat(groups) if made is not None else None
    call.consume(source, weight, 1, 0, x, groups)
    made = call.produce(weight, 0)
    if made is not None and made.numel() % groups == 0:
        call.tracker.tie_along(made.view(groups, -1), 0, call.where)
    return made


_SUMMED = "product of two activations sums over it; of attention, only whole heads can be removed"


def matmul(call: Call) -> None:
    """mm, addmm, bmm, baddbmm: rows of a times columns of b."""
    first = 1 if call.func.overloadpacket in (aten.addmm, aten.baddbmm) else 0
    a, b = call.args[first], call.args[first + 1]
    bias = call.args[0] if first else None
    _note_bias(call, b if call.is_weight(b) else a, bias)
    rows = [f for f in call.tracker.facets(a) if f.shape[-1] == 1]
    columns = [f for f in call.tracker.facets(b) if f.shape[-2] == 1]
    made: Tensor | None = None
    if call.is_weight(a) == call.is_weight(b):
        _count_matmul(call, a, b, call.tracker.facets(a), call.tracker.facets(b))
        for x, axis, others in ((a, a.dim() - 1, rows), (b, b.dim() - 2, columns)):
            for facet in call.tracker.facets(x):
                if facet.shape[axis] > 1:  # attention: heads are left, on the batch axis
                    others.append(tie_or_keep(call, facet, [axis], _SUMMED))
    else:
        left, right = call.channels(a, -1), call.channels(b, -2)
        inner = right if left is None or call.is_weight(b) else left
        summed = [] if inner is None else [on_axis(inner, b.dim() - 2, b.dim())]
        _count_matmul(call, a, b, rows, columns + summed)
        if call.is_weight(b):
            call.consume(left, b, -2, -1, a)
            made = call.produce(b, -1)
        else:
            call.consume(right, a, -1, -2, b)
            made = call.produce(a, -2)
    for one, other in ((a, b), (b, a)):
        _meet_in_batch(call, one, other)
    facets = meet(call, [rows + columns], call.out.dim())
    call.set(call.out, facets)
    if call.is_weight(a) and call.is_weight(b):
        call.set(call.out, facets, like=a)
    if bias is not None and made is not None:
        call.follow(made, bias, dim=-1 if bias.shape[-1] > 1 else 0)


def _meet_in_batch(call: Call, x: Tensor, other: Tensor) -> None:
    """Keep channels on the batch axis of a product whose other operand has no labels there."""
    if x.dim() == 3 and not any(f.shape[0] > 1 for f in call.tracker.facets(other)):
        for facet in call.tracker.facets(x):
            if facet.shape[0] > 1:
                call.tracker.keep(
                    facet, call.where, "combined with channels that no layer produces"
                )


def _note_bias(call: Call, weight: Tensor, bias: Tensor | None) -> None:
    """Record the bias of a linear layer. Its weight, here transposed, is found by its labels."""
    labels = [f for f in call.tracker.facets(weight) if f.numel() and int(f.max()) >= 0]
    owner = call.tracker.log.block_at(int(labels[0].max())).tensor if labels else ""
    name = call.tracker.names.get(bias) if bias is not None else ""
    if owner and name is not None:
        call.tracker.log.shifts[owner] = name


def _count_matmul(
    call: Call, a: Tensor, b: Tensor, left: Sequence[Tensor], right: Sequence[Tensor]
) -> None:
    """Count the product; `left` and `right` label axes of a and b, heads and channels in one."""
    batch = a.dim() - 2  # rows, summed axis and columns follow
    seen = [({*varied(f)}, f) for f in left]
    seen += [({(axis if axis < batch else axis + 1) for axis in varied(f)}, f) for f in right]
    constant, axes, counted = math.prod(a.shape) * b.shape[-1], [], set[int]()
    for of, facet in sorted(seen, key=lambda entry: -len(entry[0])):
        if not of & counted and constant % facet.numel() == 0:
            constant //= facet.numel()
            counted |= of
            axes.append(facet.reshape(-1))
    call.count(constant, *axes)


def batch_norm(call: Call) -> None:
    x, out = call.arg("input"), leaves(call.out)[0]
    source = call.channels(x, 1)
    for facet in call.others(x, 1):
        call.tracker.keep(facet, call.where, "statistics are taken over it")
    call.tracker.note_shift(call.arg("weight"), call.arg("bias"))
    names = ("weight", "bias", "running_mean", "running_var")
    owned = [t for t in (call.arg(n) for n in names) if t is not None]
    labels = [v for v in (call.channels(t, 0) for t in owned) if v is not None]
    for other in labels[1:]:
        call.tracker.tie("same", labels[0], other, call.where)
    if source is None:
        if labels:
            call.tracker.keep(labels[0], call.where, "normalises the model's input")
        return
    if len(labels) < len(owned):
        call.tracker.keep(source, call.where, "normalised by statistics from outside the model")
        return
    if not labels:
        call.set(out, [on_axis(source, 1, x.dim())], like=x)  # x may be a weight: BiT, NFNets
        return
    if call.arg("weight") is not None:
        call.tracker.role("scale", labels[0])
    call.tracker.tie("norm", source, labels[0], call.where)
    call.tracker.set_info(
        out, ChannelInfo((on_axis(labels[0], 1, x.dim()),), call.is_weight(x), steps=())
    )


def group_norm(call: Call) -> None:
    """Statistics over the channels of a norm group: only whole norm groups can be removed."""
    x, out = call.args[0], leaves(call.out)[0]
    groups, source = call.arg("group"), call.channels(x, 1)
    for facet in call.others(x, 1):
        call.tracker.keep(facet, call.where, "statistics are taken over it")
    if source is None:
        return
    if groups == 1:
        call.tracker.keep(source, call.where, "normalises over the channels")
        return
    call.tracker.note_shift(call.arg("weight"), call.arg("bias"))
    call.tracker.tie_along(source.view(groups, -1), 1, call.where)
    labels = source
    for position, name in enumerate(("weight", "bias")):
        tensor = call.arg(name)
        if tensor is None:
            continue
        own = call.channels(tensor, 0)
        if own is None:
            call.tracker.keep(source, call.where, "combined with a tensor from outside the model")
            continue
        call.tracker.tie("norm" if position == 0 else "same", labels, own, call.where)
        if position == 0:
            call.tracker.role("scale", own)
            labels = own
    call.tracker.set_info(out, ChannelInfo((on_axis(labels, 1, x.dim()),), steps=()))


def layer_norm(call: Call) -> None:
    x, shape = call.args[0], call.args[1]
    along(
        call,
        x,
        range(x.dim() - len(shape), x.dim()),
        leaves(call.out)[0],
        "normalises over the channels",
        tie=False,
    )
