"""Candidates of fixes for a width mismatch: attributes that count channels, and equal widths."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..graph.label_index import EvenSplit, WidthAttribute
from ..graph.trace_log import RecordedCall
from .groups import Grouping
from .labels import NO_PRODUCER, varied
from .trial import WidthMismatch

aten = torch.ops.aten
_VIEWS = ("view", "_unsafe_view")
FIRST = 2  # attributes that are tried before equal widths


@dataclass(frozen=True)
class WidthFix:
    """One fix for one mismatch: attributes that pruning changes, and parts of equal width."""

    width_attributes: tuple[WidthAttribute, ...] = ()
    even_splits: tuple[EvenSplit, ...] = ()


def candidates_for(
    model: nn.Module, mismatch: WidthMismatch, grouping: Grouping, calls: Sequence[RecordedCall]
) -> Iterator[WidthFix]:
    """The fixes to try for a mismatch, in order. `calls` are those of the pass."""
    packet = mismatch.recorded.op.overloadpacket
    if packet in (aten.split, aten.split_with_sizes):
        yield from _split(model, mismatch)
    elif packet is aten.slice:
        yield from _slice(model, mismatch)
    else:
        axes = [vector for vector, _ in _axes(mismatch, grouping.roots)]
        first = numbers_in_place(model, mismatch, grouping.roots)
        every = [*first, *_numbers(model, mismatch, axes)]
        attributes = list({_names(fix): fix for fix in every}.values())
        yield from attributes[:FIRST]
        yield from _same_widths(mismatch, grouping, calls, attributes[:1])
        yield from attributes[FIRST:]


def _split(model: nn.Module, mismatch: WidthMismatch) -> Iterator[WidthFix]:
    """`split(size)` and `split(sizes)`: the sizes are attributes, or the parts are even."""
    outputs, ints = mismatch.recorded.outputs, mismatch.recorded.ints
    parts = [info.facets[0].reshape(-1) for info in outputs if info is not None]
    if len(parts) != len(outputs):
        if [size for info, size in zip(outputs, ints, strict=False) if info is None] != [1]:
            return
        parts.insert(outputs.index(None), torch.tensor([NO_PRODUCER]))  # has no labels of its own
    sizes = [part.numel() for part in parts]
    even = (_balance(mismatch, parts),) if len(set(sizes)) == 1 else ()
    whole = mismatch.recorded.op.overloadpacket is aten.split
    given = 1 if whole else len(sizes)  # an axis may follow
    if mismatch.ints[:given] != mismatch.recorded.ints[:given]:  # computed from the width
        if even:
            yield WidthFix((), even)
        return
    if not whole:
        for module, attribute, value in _attributes(model, mismatch.recorded.where.module):
            if isinstance(value, (list, tuple)) and list(value) == sizes:
                yield WidthFix(
                    tuple(
                        WidthAttribute(module, attribute, i, part) for i, part in enumerate(parts)
                    )
                )
        wide = [part for part in parts if part.numel() > 1]  # a single channel always stays
        found = [next(_find(model, mismatch, part), None) for part in wide]
        if None not in found:
            yield WidthFix(tuple(count for count in found if count is not None))
    if even:
        for labels in (parts[0], torch.cat(parts)):
            for count in _find(model, mismatch, labels):
                yield WidthFix((count,), even)


def _slice(model: nn.Module, mismatch: WidthMismatch) -> Iterator[WidthFix]:
    """`x[:, start:end]`: the ends are attributes, or computed from an even division."""
    source, info = mismatch.recorded.inputs[0].reshape(-1), mismatch.recorded.outputs[0]
    if info is None or len(varied(mismatch.recorded.inputs[0])) != 1:
        return
    length, ends = info.facets[0].numel(), mismatch.recorded.ints[1:3]
    start = ends[0] % source.numel() if ends else 0
    even = source.numel() % length == 0 and start % length == 0
    if mismatch.ints[1:3] != ends:  # computed from the width
        if even:
            parts = [source[i : i + length] for i in range(0, source.numel(), length)]
            yield WidthFix((), (_balance(mismatch, parts),))
        return
    edges = [e for e in (start, start + length) if 0 < e < source.numel()]
    choices = [list(_find(model, mismatch, source[:edge])) for edge in edges]
    for number in range(max((len(c) for c in choices), default=0)):
        if all(choices):
            yield WidthFix(tuple(c[min(number, len(c) - 1)] for c in choices))


def numbers_in_place(
    model: nn.Module, mismatch: WidthMismatch, roots: Tensor
) -> Iterator[WidthFix]:
    """Attributes that hold the numbers of a view: they are the widths of its axes, in order."""
    axes = [vector for vector, in_place in _axes(mismatch, roots) if in_place]
    yield from _numbers(model, mismatch, axes)


def _numbers(
    model: nn.Module, mismatch: WidthMismatch, axes: Sequence[Tensor]
) -> Iterator[WidthFix]:
    """Attributes that hold an integer argument of any operator: one that is the width of an axis.

    It may equal the width by chance.
    """
    unchanged = set(mismatch.ints) & set(mismatch.recorded.ints)
    choices: dict[int, list[WidthAttribute]] = {}
    for vector in axes:
        if vector.numel() in unchanged and vector.numel() not in choices:
            choices[vector.numel()] = list(_find(model, mismatch, vector))
    found = [c for c in choices.values() if c]
    for number in range(max((len(c) for c in found), default=0)):
        yield WidthFix(tuple(c[min(number, len(c) - 1)] for c in found))


def _names(fix: WidthFix) -> tuple[tuple[str, str, int | None], ...]:
    return tuple((count.module, count.attribute, count.item) for count in fix.width_attributes)


def _axes(mismatch: WidthMismatch, roots: Tensor) -> Iterator[tuple[Tensor, bool]]:
    """The labels along each axis of channels, and whether a view has its width in its own place.

    An axis of one channel has no width of its own: the dimensions of a head go together. Nor has
    the axis of queries, keys and values: of three axes, only that of the heads counts.
    """
    recorded = mismatch.recorded
    outputs = [id(f) for info in recorded.outputs if info is not None for f in info.facets]
    for facet in labels_of(recorded):
        axes = varied(facet)
        if len(axes) > 2:
            axes = [min(axes, key=lambda axis: _most_classes(facet, axis, roots))]
        for axis in axes:
            first = (slice(None) if a == axis else 0 for a in range(facet.dim()))
            vector = facet[tuple(first)].reshape(-1)
            if not _is_one_channel(vector, roots):
                in_place = id(facet) in outputs and recorded.where.op in _VIEWS
                yield vector, in_place and _is_number_of_axis(mismatch, axis, facet)


def _is_number_of_axis(mismatch: WidthMismatch, axis: int, facet: Tensor) -> bool:
    """Does a view get the width of this axis of its output as a number that did not change?"""
    before, now = mismatch.recorded.ints, mismatch.ints
    same = len(before) == len(now) == facet.dim()
    return same and before[axis] == now[axis] == facet.shape[axis]


def _same_widths(
    mismatch: WidthMismatch,
    grouping: Grouping,
    calls: Sequence[RecordedCall],
    counts: Sequence[WidthFix],
) -> Iterator[WidthFix]:
    """The width is that of another tensor in the forward: `x.reshape(b, n, c)`, c of the input.

    `counts`: attributes that count heads, for `view(b, n, 3, heads, c // heads)`.
    """
    inside = f"{mismatch.recorded.where.module}.".lstrip(".")
    calls = [call for call in calls if f"{call.where.module}.".startswith(inside)]
    near = [facet for call in calls for facet in call.inputs]
    roots, free = grouping.roots, grouping.label_index.group_of >= 0
    first = mismatch.recorded.outputs[0] if mismatch.recorded.where.op in _VIEWS else None
    for facet in first.facets if first is not None else ():
        heads = len(varied(facet)) > 1
        labels = _one_part(facet)
        if bool((labels < 0).any()) or not (heads or labels.numel() in mismatch.recorded.ints):
            continue
        tried = [roots[labels]]
        for other in (f.reshape(-1) for f in near if f.numel() == labels.numel()):
            classes = roots[other.clamp(min=0)]
            may_change = bool((other >= 0).all()) and bool(free[other].any())
            if may_change and not any(torch.equal(classes, old) for old in tried):
                tried.append(classes)
                counted = counts[0].width_attributes if heads and counts else ()
                yield WidthFix(counted, (_balance(mismatch, [labels, other]),))


def _one_part(facet: Tensor) -> Tensor:
    """The labels of the last two axes that vary: the heads and dimensions of the queries."""
    for axis in varied(facet)[:-2]:
        facet = facet.narrow(axis, 0, 1)
    return facet.reshape(-1)


def _most_classes(facet: Tensor, axis: int, roots: Tensor) -> int:
    """The number of classes at one position of this axis, at most."""
    classes = roots[facet.clamp(min=0)].movedim(axis, 0).flatten(1)
    return max(int(row.unique().numel()) for row in classes)


def _is_one_channel(vector: Tensor, roots: Tensor) -> bool:
    classes = roots[vector[vector >= 0]]
    return classes.numel() == vector.numel() and bool((classes == classes[0]).all())


def labels_of(recorded: RecordedCall) -> list[Tensor]:
    outputs = [f for info in recorded.outputs if info is not None for f in info.facets]
    return [*recorded.inputs, *outputs, torch.empty(0, dtype=torch.long)]


def _balance(mismatch: WidthMismatch, parts: list[Tensor]) -> EvenSplit:
    where = mismatch.recorded.where
    return EvenSplit(tuple(p[p >= 0] for p in parts), where.op, where.module)


def _find(model: nn.Module, mismatch: WidthMismatch, labels: Tensor) -> Iterator[WidthAttribute]:
    """Attributes of the module, or of modules that contain it, that equal the number of labels.

    Those with "heads" in their name come first: dimensions of a head may be as many. Lists of
    modules around it are left out: theirs are no shapes, but numbers of layers and the like.
    """
    name = mismatch.recorded.where.module
    found = list(_attributes(model, name))
    for module, attribute, held in sorted(found, key=lambda entry: "heads" not in entry[1]):
        if held == labels.numel():
            yield WidthAttribute(module, attribute, None, labels)
    for module, attribute, held in found:  # a shape
        if not f"{module}.".startswith(f"{name}.".lstrip(".")):
            continue
        for item, value in enumerate(held) if isinstance(held, (list, tuple)) else ():
            if value == labels.numel():
                yield WidthAttribute(module, attribute, item, labels)


def _attributes(model: nn.Module, name: str) -> Iterator[tuple[str, str, Any]]:
    """Integer attributes and lists of integers: of the module, of those around it, of its parts.

    Parts last: a forward may call other methods of them (a table of positions makes its bias).
    """
    parts = model.get_submodule(name)._modules.items()
    inner = [
        f"{name}.{key}".lstrip(".")
        for key, part in parts
        if part is not None and not type(part).__module__.startswith("torch.nn")
    ]
    names = [name]
    while name:
        name = name.rpartition(".")[0]
        names.append(name)
    for module in (*names, *inner):
        for attribute, value in vars(model.get_submodule(module)).items():
            numbers = isinstance(value, (list, tuple)) and all(type(v) is int for v in value)
            if not attribute.startswith("_") and (type(value) is int or (numbers and value)):
                yield module, attribute, value
