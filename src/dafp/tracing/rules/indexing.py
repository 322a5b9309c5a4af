"""Rules of operators that index, sort and choose entries by positions or truth values."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...network.leaves import leaves
from ..call import Call
from ..labels import align, on_axis, thin
from .data_movement import write_values

_BY_VALUES = "indexed by values that depend on the data"


def index_select(call: Call) -> None:
    _pick(call, call.args[0], call.args[1] % call.args[0].dim(), call.args[2])


def index(call: Call) -> None:
    """x[i, :, j]: index the label tensors too, at position 0 where labels are constant."""
    x, indices = call.args[0], call.args[1]
    axes = [axis for axis, i in enumerate(indices) if i is not None]
    if len(axes) == 1 and indices[axes[0]].dim() == 1:
        _pick(call, x, axes[0], indices[axes[0]])
        return
    positions = _positions(call, indices)
    places = max(p.values.dim() for p in positions if p is not None)
    facets = []
    for facet in call.tracker.facets(x):
        used = [facet.shape[axis] > 1 for axis in range(len(positions))]
        if any(u and p is not None and not p.known for u, p in zip(used, positions, strict=True)):
            call.tracker.keep(facet, call.where, _BY_VALUES)
            continue
        if call.is_weight(x) and any(
            u and p is not None and p.values.dim() > 1 for u, p in zip(used, positions, strict=True)
        ):
            call.tracker.keep(facet, call.where, "positions of a table of weights")
            continue
        start = facet.new_zeros([1] * places)
        at = tuple(
            slice(None) if p is None else align(p.values.to(facet.device), places) if u else start
            for u, p in zip(used, positions, strict=True)
        )
        facets.append(thin(facet[at]))
    call.set(call.out, facets, like=x)


@dataclass(frozen=True)
class _Position:
    """The positions that are taken along one axis; not known if they depend on the data."""

    values: Tensor
    known: bool


def _positions(call: Call, indices: Any) -> list[_Position | None]:
    """One entry per axis. A mask of several axes counts as that many vectors of positions."""
    found: list[_Position | None] = []
    for i in indices:
        if i is None:
            found.append(None)
            continue
        known = call.is_constant(i)
        if i.dtype is not torch.bool:
            found.append(_Position(i, known))
        elif known:
            found += [_Position(vector, known) for vector in i.nonzero().unbind(1)]
        else:
            found += [_Position(i.new_zeros(1, dtype=torch.long), known)] * i.dim()
    return found


def _pick(call: Call, x: Tensor, axis: int, chosen: Tensor) -> None:
    facets = []
    for facet in call.tracker.facets(x):
        if facet.shape[axis] > 1:
            vector = call.channels(x, axis)
            picked = call.use_index(chosen, vector) if vector is not None else None
            if picked is None:
                call.tracker.keep(facet, call.where, _BY_VALUES)
                continue
            facet = on_axis(picked, axis, facet.dim())
        facets.append(facet)
    call.set(call.out, facets, like=x)


def embedding(call: Call) -> None:
    """A row of the weight for every index: the weight produces channels, on the last axis."""
    weight = call.args[0]
    rows, made = call.channels(weight, 0), call.produce(weight, 1)
    if rows is not None:
        call.tracker.keep(rows, call.where, _BY_VALUES)
    if made is not None:
        call.set(call.out, [on_axis(made, call.out.dim() - 1, call.out.dim())])


def put(call: Call) -> None:
    """x[i] = values: entries of axes without channels are written, wherever they are."""
    target, indices, values = call.args[:3]
    axes = [axis for axis, i in enumerate(indices) if i is not None]
    simple = axes == [0] and indices[0].dim() == 1
    if call.tracker.facets(values) and not simple:
        call.keep("written in a way that cannot be followed")
    elif any(f.shape[axis] > 1 for f in call.tracker.facets(target) for axis in axes):
        call.keep("written at positions of single channels")
    else:
        write_values(call, target, values)
        if call.out is not target:  # a copy in which the values are written
            call.set(call.out, call.tracker.facets(target), like=target)


def gather(call: Call) -> None:
    """Takes entries along one axis: channels of other axes pass if these are taken whole."""
    x, axis, chosen = call.args[0], call.args[1] % call.args[0].dim(), call.args[2]
    facets = []
    for facet in call.tracker.facets(x):
        if facet.shape[axis] > 1:
            call.tracker.keep(facet, call.where, _BY_VALUES)
        elif any(facet.shape[d] > 1 and chosen.shape[d] < x.shape[d] for d in range(x.dim())):
            call.tracker.keep(facet, call.where, "only a part of it is gathered")
        else:
            facets.append(facet)
    call.set(call.out, facets, like=x)


def rank(call: Call) -> None:
    """topk and sort: the channels on the axis that is sorted are kept, those of others pass."""
    x, axis = call.args[0], call.arg("dim", -1) % call.args[0].dim()
    facets = []
    for facet in call.tracker.facets(x):
        if facet.shape[axis] > 1:
            call.tracker.keep(facet, call.where, "sorted by its values")
        else:
            facets.append(facet)
    for out in leaves(call.out):
        call.set(out, facets, like=x)


def decide(call: Call) -> None:
    """nonzero, nms: the values of all channels decide how many entries there are."""
    call.keep("entries are chosen by its values")
