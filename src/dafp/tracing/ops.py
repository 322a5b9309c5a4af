"""How each ATen operator treats channels: one small function per kind of operator."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .flow import Call, Rule, Tag
from .labels import ANYBODY, NOBODY, align, on_axis, reshape, slice_axis, varied

aten = torch.ops.aten


# ---- layers with weights -------------------------------------------------------------------------


def convolution(call: Call) -> None:
    x, weight, bias = call.args[0], call.args[1], call.args[2]
    transposed, groups = call.args[6], call.args[8]
    if x.dim() == weight.dim() - 1:  # no batch axis
        call.keep("convolution without a batch axis", [x])
        return
    for facet in call.others(x, 1):
        if any(axis >= 2 for axis in varied(facet)):
            call.flow.keep(facet, call.where, "convolved over channels that lie on an image axis")
    in_dim, out_dim = (0, 1) if transposed else (1, 0)
    source = call.channels(x, 1)
    per_group = x.shape[1] // groups
    positions = (x if transposed else call.out).shape
    constant = positions[0] * math.prod(positions[2:]) * math.prod(weight.shape[2:])
    sized = [call.channels(weight, d) for d in (0, 1)]
    constant *= math.prod(weight.shape[d] for d in (0, 1) if sized[d] is None)
    call.count(constant, *sized)
    if groups == 1:
        call.read(source, weight, in_dim, out_dim, x)
        made = call.make(weight, out_dim)
    elif per_group == 1:
        made = _depthwise(call, source, x, weight, groups, transposed)
    else:
        made = _grouped(call, source, x, weight, groups, transposed)
    if made is None:
        return
    if bias is not None:
        call.follow(made, bias)
    steps = None
    if groups > 1 and per_group == 1:
        steps = None
    call.flow.tag(call.out, Tag((on_axis(made, 1, call.out.dim()),), steps=steps))


def _depthwise(
    call: Call, source: Tensor | None, x: Tensor, weight: Tensor, groups: int, transposed: bool
) -> Tensor | None:
    """Each input channel makes `times` output channels of its own: labels pass."""
    times = call.out.shape[1] // groups
    own = call.channels(weight, 0)
    if source is None:
        if own is not None:
            call.flow.keep(own, call.where, "filters the model's input channel by channel")
        return None
    passed = source.repeat_interleave(times)
    if own is None:
        call.flow.keep(source, call.where, "depthwise weights that are not a part of the model")
    else:
        call.flow.tie("same", source if transposed else passed, own, call.where)
    return passed


def _grouped(
    call: Call, source: Tensor | None, x: Tensor, weight: Tensor, groups: int, transposed: bool
) -> Tensor | None:
    """Channels at the same place in each group are tied."""
    if source is not None:
        call.flow.tie_along(source.view(groups, -1), 0, call.where)
    if transposed:
        own = call.channels(weight, 0)
        if own is not None:
            call.flow.tie_along(own.view(groups, -1), 0, call.where)
        call.read(source, weight, 0, 1, x)
        made = call.make(weight, 1)
        return made.repeat(groups) if made is not None else None
    call.read(source, weight, 1, 0, x, groups)
    made = call.make(weight, 0)
    if made is not None and made.numel() % groups == 0:
        call.flow.tie_along(made.view(groups, -1), 0, call.where)
    return made


def matmul(call: Call) -> None:
    """mm, addmm, bmm, baddbmm: rows of a times columns of b."""
    first = 1 if call.func.overloadpacket in (aten.addmm, aten.baddbmm) else 0
    a, b = call.args[first], call.args[first + 1]
    bias = call.args[0] if first else None
    left, right = call.channels(a, -1), call.channels(b, -2)
    rows = [f for f in call.flow.facets(a) if f.shape[-1] == 1]
    columns = [f for f in call.flow.facets(b) if f.shape[-2] == 1]
    _count_matmul(call, a, b, left, right, rows, columns)
    made: Tensor | None = None
    if call.is_weight(b) and not call.is_weight(a):
        call.read(left, b, -2, -1, a)
        made = call.make(b, -1)
    elif call.is_weight(a) and not call.is_weight(b):
        call.read(right, a, -1, -2, b)
        made = call.make(a, -2)
    else:
        for vector in (left, right):
            if vector is not None:
                call.flow.keep(vector, call.where, "product of two activations sums over it")
    facets = rows + columns
    _meet(call, [facets], call.out.dim())
    call.set(call.out, facets)
    if call.is_weight(a) and call.is_weight(b):
        call.set(call.out, facets, like=a)
    if bias is not None and made is not None:
        call.follow(made, bias, dim=-1 if bias.shape[-1] > 1 else 0)


def _count_matmul(
    call: Call, a: Tensor, b: Tensor, left: Tensor | None, right: Tensor | None,
    rows: list[Tensor], columns: list[Tensor],
) -> None:  # fmt: skip
    constant, axes = math.prod(a.shape) * b.shape[-1], []
    inner = right if left is None or call.is_weight(b) else left
    for vector in [inner, *(f.reshape(-1) for f in rows), *(f.reshape(-1) for f in columns)]:
        if vector is not None and constant % vector.numel() == 0:
            constant //= vector.numel()
            axes.append(vector)
    call.count(constant, *axes)


# ---- normalisation -------------------------------------------------------------------------------


def batch_norm(call: Call) -> None:
    x, out = call.arg("input"), tree_leaves(call.out)[0]
    source = call.channels(x, 1)
    for facet in call.others(x, 1):
        call.flow.keep(facet, call.where, "statistics are taken over it")
    names = ("weight", "bias", "running_mean", "running_var")
    owned = [t for t in (call.arg(n) for n in names) if t is not None]
    labels = [v for v in (call.channels(t, 0) for t in owned) if v is not None]
    for other in labels[1:]:
        call.flow.tie("same", labels[0], other, call.where)
    if source is None:
        if labels:
            call.flow.keep(labels[0], call.where, "normalises the model's input")
        return
    if len(labels) < len(owned):
        call.flow.keep(source, call.where, "statistics that are not a part of the model")
        return
    if not labels:
        call.set(out, [on_axis(source, 1, x.dim())])
        return
    if call.arg("weight") is not None:
        call.flow.role("scale", labels[0])
    call.flow.tie("norm", source, labels[0], call.where)
    call.flow.tag(out, Tag((on_axis(labels[0], 1, x.dim()),), call.is_weight(x), steps=()))


def group_norm(call: Call) -> None:
    """Statistics over the channels of a group: whole groups go, or nothing."""
    x, out = call.args[0], tree_leaves(call.out)[0]
    groups, source = call.arg("group"), call.channels(x, 1)
    for facet in call.others(x, 1):
        call.flow.keep(facet, call.where, "statistics are taken over it")
    if source is None:
        return
    if groups == 1:
        call.flow.keep(source, call.where, "normalises over the channels")
        return
    call.flow.tie_along(source.view(groups, -1), 1, call.where)
    labels = source
    for position, name in enumerate(("weight", "bias")):
        tensor = call.arg(name)
        if tensor is None:
            continue
        own = call.channels(tensor, 0)
        if own is None:
            call.flow.keep(source, call.where, "meets a tensor that is not a part of the model")
            continue
        call.flow.tie("norm" if position == 0 else "same", labels, own, call.where)
        if position == 0:
            call.flow.role("scale", own)
            labels = own
    call.flow.tag(out, Tag((on_axis(labels, 1, x.dim()),), steps=()))


def layer_norm(call: Call) -> None:
    x, shape = call.args[0], call.args[1]
    _along(call, x, range(x.dim() - len(shape), x.dim()), tree_leaves(call.out)[0],
           "normalises over the channels", tie=False)  # fmt: skip


# ---- elementwise ---------------------------------------------------------------------------------


def pointwise(call: Call) -> None:
    out = tree_leaves(call.out)[0]
    ndim = out.dim()
    operands = [t for t in call.tensors if t.dim() > 0]
    labelled = [t for t in operands if call.flow.facets(t)]
    # the operand that is not broadcast gives its labels: its scale is the nearest to a reader
    labelled.sort(key=lambda t: (call.is_weight(t), -t.numel()))
    facets = [call.broadcast(t, ndim) for t in labelled]
    for tensor in operands:
        _meet_stranger(call, tensor, facets, ndim)
    residual = call.func.overloadpacket in _ADDITIONS and len(labelled) == 2
    residual = residual and not any(call.is_weight(t) for t in labelled)
    merged = _meet(call, facets, ndim, "add" if residual else "same")
    steps = None
    activations = [t for t in labelled if not call.is_weight(t)]
    if len(activations) == 1 and activations[0] is call.args[0]:
        steps = call.step(activations[0])
    call.flow.tag(out, Tag(tuple(merged), not activations, steps))


_ADDITIONS = (aten.add, aten.add_, aten.sub, aten.sub_, aten.rsub)


def _meet(call: Call, groups: list[list[Tensor]], ndim: int, kind: str = "same") -> list[Tensor]:
    """Tie the facets that share an axis; what shares none lives on side by side."""
    merged: list[Tensor] = []
    for facets in groups:
        for facet in facets:
            axes = set(varied(facet))
            match = next((i for i, m in enumerate(merged) if axes & set(varied(m))), None)
            if match is None:
                merged.append(facet)
                continue
            old = merged[match]
            call.flow.tie(kind, old, facet, call.where)
            for axis in set(varied(old)) ^ axes:
                wide = old if old.shape[axis] > 1 else facet
                narrow = call.flow.tie_along(wide, axis, call.where)
                old, facet = (narrow, facet) if wide is old else (old, narrow)
            if kind == "add" and not torch.equal(old, facet):
                old = call.flow.sum_of(old, facet, call.where)
            old = torch.where(old == ANYBODY, facet, old)
            merged[match] = old
    return merged


def _meet_stranger(call: Call, tensor: Tensor, groups: list[list[Tensor]], ndim: int) -> None:
    """A tensor without labels, as wide as the channels: its entries cannot go with them."""
    shape = [1] * (ndim - tensor.dim()) + list(tensor.shape)
    own = {axis for f in call.broadcast(tensor, ndim) for axis in varied(f)}
    for facets in groups:
        for facet in facets:
            if any(shape[axis] > 1 and axis not in own for axis in varied(facet)):
                call.flow.keep(facet, call.where, "meets channels that no layer makes")


def unary(call: Call) -> None:
    """Clone, cast, detach, dropout: the same tensor again."""
    tag = call.flow.tags.get(call.args[0])
    out = tree_leaves(call.out)[0]
    if tag is not None:
        call.flow.tag(out, Tag(tag.facets, tag.is_weight, tag.steps, tag.name))


def image_only(call: Call) -> None:
    """Pools and resizes: only the last axes are touched. Number of them by the operator's name."""
    x = call.args[0]
    name = call.func.overloadpacket.__name__
    count = next((n for n in (1, 2, 3) if f"{n}d" in name), 2)
    _along(call, x, range(x.dim() - count, x.dim()), tree_leaves(call.out)[0],
           "channels lie on an image axis", tie=False)  # fmt: skip


def pad(call: Call) -> None:
    x, amounts = call.args[0], call.args[1]
    facets = list(call.flow.facets(x))
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
                sides.append(torch.full(shape, NOBODY))
            facets[n] = torch.cat([sides[0], facet, sides[1]], axis)
    call.set(call.out, facets, like=x)


# ---- reductions ----------------------------------------------------------------------------------


def reduction(call: Call) -> None:
    x = call.args[0]
    dims = call.arg("dim")
    out = tree_leaves(call.out)
    if dims is None or (isinstance(dims, (list, tuple)) and not dims):
        call.keep("reduced over all its channels")
        return
    dims = [d % x.dim() for d in (dims if isinstance(dims, (list, tuple)) else [dims])]
    keepdim = out[0].dim() == x.dim()
    facets = []
    for facet in call.flow.facets(x):
        facet = _tie_or_keep(call, facet, dims, "reduced over its channels")
        if not keepdim:
            facet = facet.view([s for axis, s in enumerate(facet.shape) if axis not in dims])
        facets.append(facet)
    for tensor in out:
        call.set(tensor, facets)
        if call.is_weight(x):
            call.set(tensor, facets, like=x)


def softmax(call: Call) -> None:
    x = call.args[0]
    _along(call, x, [call.args[1] % x.dim()], call.out, "softmax over the channels", tie=True)


def _along(
    call: Call, x: Tensor, axes: Sequence[int], out: Tensor, reason: str, *, tie: bool
) -> None:
    """An operator that mixes entries along these axes and leaves the others alone."""
    facets = []
    for facet in call.flow.facets(x):
        if any(facet.shape[axis] > 1 for axis in axes):
            if tie:
                _tie_or_keep(call, facet, list(axes), reason)
            else:
                call.flow.keep(facet, call.where, reason)
                continue
        facets.append(facet)
    call.set(out, facets, like=x)


def _tie_or_keep(call: Call, facet: Tensor, dims: list[int], reason: str) -> Tensor:
    """Tie along the mixed axes if another axis still carries channels, else keep."""
    mixed = [d for d in dims if facet.shape[d] > 1]
    if mixed and not [axis for axis in varied(facet) if axis not in dims]:
        call.flow.keep(facet, call.where, reason)
        for d in mixed:
            facet = facet.narrow(d, 0, 1)
        return torch.full_like(facet, NOBODY)
    for d in mixed:
        facet = call.flow.tie_along(facet, d, call.where)
    return facet


# ---- data movement: the same operator on the labels ----------------------------------------------


def view(call: Call) -> None:
    x = call.args[0]
    facets = [
        reshape(
            f,
            x.shape,
            call.out.shape,
            lambda label, axis: call.flow.tie_along(label, axis, call.where),
        )
        for f in call.flow.facets(x)
    ]
    call.set(call.out, facets, like=x)


def rearrange(call: Call) -> None:
    """permute, transpose, t, flip, unsqueeze: any axis of size 1 behaves the same."""
    x = call.args[0]
    facets = [call.func(f, *call.args[1:], **call.kwargs) for f in call.flow.facets(x)]
    call.set(call.out, facets, like=x)


def squeeze(call: Call) -> None:
    x = call.args[0]
    dims = call.args[1] if len(call.args) > 1 else range(x.dim())
    dims = [d % x.dim() for d in ([dims] if isinstance(dims, int) else dims)]
    gone = [d for d in dims if x.shape[d] == 1]
    facets = [
        f.reshape([s for axis, s in enumerate(f.shape) if axis not in gone])
        for f in call.flow.facets(x)
    ]
    call.set(call.out, facets, like=x)


def expand(call: Call) -> None:
    x = call.args[0]
    call.set(call.out, [align(f, call.out.dim()) for f in call.flow.facets(x)], like=x)


def take_slice(call: Call) -> None:
    x, axis = call.args[0], call.arg("dim") % call.args[0].dim()
    start, step = call.arg("start") or 0, call.arg("step") or 1
    start = max(0, start + x.shape[axis]) if start < 0 else min(start, x.shape[axis])
    length = call.out.shape[axis]
    facets = (
        [slice_axis(f, axis, start, length, step) for f in call.flow.facets(x)] if length else []
    )
    call.set(call.out, facets, like=x)


def select(call: Call) -> None:
    x, axis, position = call.args[0], call.args[1] % call.args[0].dim(), call.args[2]
    facets = [
        f.select(axis, 0 if f.shape[axis] == 1 else position % x.shape[axis])
        for f in call.flow.facets(x)
    ]
    call.set(call.out, facets, like=x)


def split(call: Call) -> None:
    x, axis, start = call.args[0], call.arg("dim", 0) % call.args[0].dim(), 0
    for part in call.out:
        length = part.shape[axis]
        facets = [slice_axis(f, axis, start, length) for f in call.flow.facets(x)]
        call.set(part, facets, like=x)
        start += length


def unbind(call: Call) -> None:
    x, axis = call.args[0], call.arg("dim", 0) % call.args[0].dim()
    for position, part in enumerate(call.out):
        facets = [
            f.select(axis, 0 if f.shape[axis] == 1 else position) for f in call.flow.facets(x)
        ]
        call.set(part, facets, like=x)


def cat(call: Call) -> None:
    parts = [t for t in call.args[0] if t.numel()]
    axis = call.arg("dim", 0) % call.out.dim()
    _join(call, parts, [call.flow.facets(t) for t in parts], axis, stacked=False)


def stack(call: Call) -> None:
    parts = call.args[0]
    axis = call.arg("dim", 0) % call.out.dim()
    facets = [tuple(f.unsqueeze(axis) for f in call.flow.facets(t)) for t in parts]
    _join(call, parts, facets, axis, stacked=True)


def _join(
    call: Call,
    parts: Sequence[Tensor],
    groups: Sequence[tuple[Tensor, ...]],
    axis: int,
    *,
    stacked: bool,
) -> None:
    """Labels follow one another along `axis`; on other axes, parts that meet are tied."""
    joined = stacked or any(f.shape[axis] > 1 for facets in groups for f in facets)
    if any(len(facets) > 1 for facets in groups):
        call.keep("joins tensors with channels on several axes")
        return
    like = parts[0] if all(call.is_weight(t) for t in parts) else None
    if not joined:
        for i, tensor in enumerate(parts):
            if not groups[i]:
                others = [list(g) for g in groups if g]
                _meet_stranger(call, tensor, others, call.out.dim())
        call.set(call.out, _meet(call, [list(g) for g in groups], call.out.dim()), like=like)
        return
    width = [max([f.shape[a] for g in groups for f in g], default=1) for a in range(call.out.dim())]
    pieces = []
    for tensor, facets in zip(parts, groups, strict=True):
        shape = list(width)
        shape[axis] = 1 if stacked else tensor.shape[axis]
        filler = torch.full([1] * len(shape), NOBODY)
        pieces.append((facets[0] if facets else filler).expand(shape))
    call.set(call.out, [torch.cat(pieces, axis)], like=like)


def repeat(call: Call) -> None:
    x, times = call.args[0], call.args[1]
    facets = []
    for facet in call.flow.facets(x):
        facet = align(facet, len(times))
        facets.append(facet.repeat([t if facet.shape[a] > 1 else 1 for a, t in enumerate(times)]))
    call.set(call.out, facets, like=x)


def roll(call: Call) -> None:
    """A channel that is rolled over the end comes before others: removal would reorder them."""
    x, dims = call.args[0], call.arg("dims")
    axes = [d % x.dim() for d in dims] if dims else range(x.dim())
    _along(call, x, axes, call.out, "its channels are rolled", tie=False)


def glu(call: Call) -> None:
    """The first half of an axis, gated by the second: halves are tied."""
    x, axis = call.args[0], call.arg("dim", -1) % call.args[0].dim()
    facets = []
    for facet in call.flow.facets(x):
        if facet.shape[axis] > 1:
            half = facet.shape[axis] // 2
            a, b = facet.narrow(axis, 0, half), facet.narrow(axis, half, half)
            call.flow.tie("same", a, b, call.where)
            facet = a
        facets.append(facet)
    call.set(call.out, facets, like=x)


def weight_norm(call: Call) -> None:
    """g · v / ‖v‖: the norm is taken over all axes but one, which alone can lose entries."""
    v, g, axis = call.args[0], call.args[1], call.arg("dim")
    made = call.channels(v, axis)
    for facet in call.others(v, axis):
        call.flow.keep(facet, call.where, "a norm is taken over it")
    if made is not None:
        call.follow(made, g, axis)
        call.set(tree_leaves(call.out)[0], [on_axis(made, axis, v.dim())], like=v)


def index_select(call: Call) -> None:
    _pick(call, call.args[0], call.args[1] % call.args[0].dim(), call.args[2])


def index(call: Call) -> None:
    x, indices = call.args[0], call.args[1]
    axes = [axis for axis, i in enumerate(indices) if i is not None]
    used = [f for f in call.flow.facets(x) if any(f.shape[a] > 1 for a in axes)]
    if len(axes) == 1 and indices[axes[0]].dim() == 1:
        _pick(call, x, axes[0], indices[axes[0]])
    elif used or axes != list(range(axes[0], axes[-1] + 1)) or call.out.dim() != x.dim():
        call.keep("indexed in a way that cannot be followed")
    else:
        call.set(call.out, call.flow.facets(x), like=x)


def _pick(call: Call, x: Tensor, axis: int, chosen: Tensor) -> None:
    facets = []
    for facet in call.flow.facets(x):
        if facet.shape[axis] > 1:
            vector = call.channels(x, axis)
            picked = call.use_index(chosen, vector) if vector is not None else None
            if picked is None:
                call.flow.keep(facet, call.where, "indexed by values that depend on the data")
                continue
            facet = on_axis(picked, axis, facet.dim())
        facets.append(facet)
    call.set(call.out, facets, like=x)


def channel_shuffle(call: Call) -> None:
    x, groups = call.args[0], call.args[1]
    source = call.channels(x, 1)
    if source is None:
        return
    call.flow.tie_along(source.view(groups, -1), 0, call.where)
    call.set(call.out, [on_axis(source.view(groups, -1).t().reshape(-1), 1, x.dim())], like=x)


def pixel_shuffle(call: Call) -> None:
    x, factor = call.args[0], call.args[1]
    source = call.channels(x, -3)
    if source is None:
        return
    label = call.flow.tie_along(source.view(-1, factor * factor), 1, call.where)
    call.set(call.out, [on_axis(label.reshape(-1), x.dim() - 3, x.dim())])


def pixel_unshuffle(call: Call) -> None:
    x, factor = call.args[0], call.args[1]
    source = call.channels(x, -3)
    if source is not None:
        label = source.repeat_interleave(factor * factor)
        call.set(call.out, [on_axis(label, x.dim() - 3, x.dim())])


# ---- writes --------------------------------------------------------------------------------------


def write(call: Call) -> None:
    """copy_ into a tensor or a part of it: labels go through to the owner of the storage."""
    target, source = call.args[0], call.args[1]
    labels, new = call.flow.facets(target), call.broadcast(source, target.dim())
    if not new:
        _meet_stranger(call, source, [list(labels)], target.dim())
        return
    if len(labels) != 1 or len(new) != 1 or set(varied(labels[0])) != set(varied(new[0])):
        call.keep("written in a way that cannot be followed")
        return
    old = labels[0]
    if bool((old == ANYBODY).any()) and not call.flow.tags[target].linked:
        call.keep("written through a view that cannot be followed")
        return
    call.flow.tie("same", old, new[0], call.where)
    old.copy_(torch.where(old == ANYBODY, new[0], old))


def factory(call: Call) -> None:
    """new_zeros, zeros_like: a fresh tensor, whatever it was modelled on."""
    call.flow.tag_factory(call.out)


def untouched(call: Call) -> None:
    """fill_, zero_, bernoulli_: values change, channels stay."""


def unknown(call: Call) -> None:
    call.keep(f"operator {call.where.op!r} is not known; teach it with rules=")


def rule_without_entry(func: Any) -> Rule:
    """The rule for an operator that has no entry of its own."""
    packet = func.overloadpacket
    functional = getattr(aten, packet.__name__.rstrip("_"), None)
    if packet.__name__.endswith("_") and functional in RULES:
        return RULES[functional]
    if torch.Tag.pointwise in func.tags:
        return pointwise
    return unknown


def _rules(rule: Rule, names: str) -> dict[Any, Rule]:
    return {getattr(aten, n): rule for n in names.split() if hasattr(aten, n)}


RULES: dict[Any, Rule] = {
    aten.convolution: convolution,
    **_rules(matmul, "mm addmm bmm baddbmm"),
    **_rules(batch_norm, """native_batch_norm _native_batch_norm_legit cudnn_batch_norm
        _native_batch_norm_legit_no_training miopen_batch_norm _batch_norm_with_update
        _batch_norm_no_update"""),
    aten.native_group_norm: group_norm,
    aten.native_layer_norm: layer_norm,
    **_rules(unary, """clone _to_copy detach alias contiguous lift_fresh native_dropout
        bernoulli"""),
    **_rules(pointwise, "hardswish prelu _prelu_kernel rsub"),
    **_rules(image_only, """max_pool2d_with_indices max_pool3d_with_indices avg_pool1d avg_pool2d
        avg_pool3d _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d
        adaptive_max_pool2d adaptive_max_pool3d adaptive_max_pool1d fractional_max_pool2d
        upsample_nearest1d upsample_nearest2d upsample_nearest3d _upsample_nearest_exact2d
        upsample_bilinear2d upsample_bicubic2d _upsample_bilinear2d_aa upsample_linear1d
        upsample_trilinear3d reflection_pad1d reflection_pad2d reflection_pad3d
        replication_pad1d replication_pad2d replication_pad3d"""),
    aten.constant_pad_nd: pad,
    **_rules(reduction, """sum mean amax amin max min var std var_mean std_mean prod logsumexp
        linalg_vector_norm argmax argmin any all norm median"""),
    **_rules(softmax, "_softmax _log_softmax cumsum cumprod"),
    **_rules(view, "view _unsafe_view _reshape_alias reshape flatten unflatten"),
    **_rules(rearrange, "permute transpose t flip unsqueeze"),
    **_rules(squeeze, "squeeze"),
    **_rules(expand, "expand"),
    aten.slice: take_slice,
    aten.select: select,
    **_rules(split, "split split_with_sizes chunk"),
    aten.unbind: unbind,
    aten.cat: cat,
    aten.stack: stack,
    aten.repeat: repeat,
    aten.roll: roll,
    aten.glu: glu,
    aten._weight_norm_interface: weight_norm,
    aten.index_select: index_select,
    aten.index: index,
    **_rules(channel_shuffle, "channel_shuffle native_channel_shuffle"),
    aten.pixel_shuffle: pixel_shuffle,
    aten.pixel_unshuffle: pixel_unshuffle,
    aten.copy_: write,
    **_rules(factory, """new_zeros new_ones new_full new_empty zeros_like ones_like empty_like
        full_like rand_like randn_like"""),
    **_rules(untouched, "fill_ zero_ bernoulli_ uniform_ normal_ random_ sym_size"),
}  # fmt: skip
