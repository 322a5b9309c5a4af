"""What to do about forward code with channel counts written into it.

Each place where a narrower network misfits is answered, in this order: a number among the module's
attributes that counts these channels (it will follow them), parts that must stay equally wide,
channels that must go together, and at last: the channels are kept, and it is said why.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..graph import Balance, Count
from ..record import Keep, Record, Tie
from .labels import varied
from .trial import Misfit

aten = torch.ops.aten


@dataclass(frozen=True)
class Answers:
    """What the trials have found out so far."""

    counts: tuple[Count, ...] = ()
    balances: tuple[Balance, ...] = ()
    tried: tuple[tuple[str, int, int], ...] = ()  # (pass, operator, attempt)


def answer(
    model: nn.Module, record: Record, misfit: Misfit, answers: Answers, where: str
) -> Answers:
    """Find the next answer to one misfit; ties and keeps go into the record."""
    attempt = sum(1 for w, n, _ in answers.tried if (w, n) == (where, misfit.number))
    answers = replace(answers, tried=(*answers.tried, (where, misfit.number, attempt)))
    found = _counts_or_balances(model, misfit, answers) if attempt == 0 else None
    if found is not None:
        return found
    if attempt <= 1 and _tie_columns(record, misfit):
        return answers
    labels = [f.reshape(-1) for f in _labels(misfit)]
    flat = torch.cat(labels) if labels else torch.empty(0, dtype=torch.long)
    record.keeps.append(
        Keep(flat[flat >= 0], misfit.site.where, "the forward has this width written into it")
    )
    return answers


def _labels(misfit: Misfit) -> list[Tensor]:
    outputs = [f for tag in misfit.site.outputs if tag is not None for f in tag.facets]
    return [*misfit.site.inputs, *outputs]


def _counts_or_balances(model: nn.Module, misfit: Misfit, answers: Answers) -> Answers | None:
    packet = misfit.site.op.overloadpacket
    if packet in (aten.split, aten.split_with_sizes):
        return _split(model, misfit, answers)
    if packet is aten.slice:
        return _slice(model, misfit, answers)
    return _numbers(model, misfit, answers)


def _split(model: nn.Module, misfit: Misfit, answers: Answers) -> Answers | None:
    """`split(size)` and `split(sizes)`: the numbers are attributes, or the parts are even."""
    parts = [tag.facets[0].reshape(-1) for tag in misfit.site.outputs if tag is not None]
    if len(parts) != len(misfit.site.outputs):
        return None
    sizes = [part.numel() for part in parts]
    even = len(set(sizes)) == 1
    together = replace(answers, balances=(*answers.balances, _balance(misfit, parts)))
    dim_given = len(misfit.ints) - 1
    computed = misfit.ints[:dim_given] != misfit.site.ints[:dim_given]
    if computed:
        return together if even else None
    for module, attribute, value in _attributes(model, misfit.site.where.module):
        if isinstance(value, (list, tuple)) and list(value) == sizes:
            for item, part in enumerate(parts):
                answers = _add(answers, Count(module, attribute, item, part), misfit)
            return answers
    whole = torch.cat(parts)
    if even:
        counts = (_find(model, misfit, v.numel(), v) for v in (parts[0], whole))
        count = next((c for c in counts if c is not None), None)
        return None if count is None else _add(together, count, misfit)
    return _add_all(answers, [_find(model, misfit, p.numel(), p) for p in parts], misfit)


def _slice(model: nn.Module, misfit: Misfit, answers: Answers) -> Answers | None:
    """`x[:, start:end]`: the ends are attributes, or computed from an even division."""
    source, tag = misfit.site.inputs[0].reshape(-1), misfit.site.outputs[0]
    if tag is None or len(varied(misfit.site.inputs[0])) != 1:
        return None
    length = tag.facets[0].numel()
    ends = misfit.site.ints[1:3]
    start = ends[0] if ends else 0
    start = start if start >= 0 else start + source.numel()
    end = min(start + length, source.numel())
    if misfit.ints[1:3] != ends:  # computed from the width
        if source.numel() % length or start % length:
            return None
        parts = [source[i : i + length] for i in range(0, source.numel(), length)]
        return replace(answers, balances=(*answers.balances, _balance(misfit, parts)))
    edges = [edge for edge in (start, end) if 0 < edge < source.numel()]
    return _add_all(answers, [_find(model, misfit, e, source[:e]) for e in edges], misfit)


def _numbers(model: nn.Module, misfit: Misfit, answers: Answers) -> Answers | None:
    """Any operator with a number among its arguments that is the width of an axis."""
    found: Answers | None = None
    vectors = [f.reshape(-1) for f in _labels(misfit) if len(varied(f)) == 1]
    outputs = [f for tag in misfit.site.outputs if tag is not None for f in tag.facets]
    for facet in outputs:
        if len(varied(facet)) > 1:  # e.g. (groups, channels per group)
            for axis in varied(facet):
                index = [0] * facet.dim()
                along = facet[tuple(slice(None) if a == axis else i for a, i in enumerate(index))]
                vectors.append(along.reshape(-1))
    same = set(misfit.ints) & set(misfit.site.ints)
    for vector in vectors:
        if vector.numel() in same:
            count = _find(model, misfit, vector.numel(), vector)
            if count is not None:
                found = _add(found or answers, count, misfit)
    return found


def _tie_columns(record: Record, misfit: Misfit) -> bool:
    """Channels on several axes at once: tie along all of them but the longest."""
    done = False
    for facet in _labels(misfit):
        axes = varied(facet)
        if len(axes) < 2:
            continue
        longest = max(axes, key=lambda axis: facet.shape[axis])
        for axis in axes:
            if axis != longest:
                first = facet.narrow(axis, 0, 1).expand_as(facet).reshape(-1)
                rest = facet.reshape(-1)
                both = (first >= 0) & (rest >= 0) & (first != rest)
                record.ties.append(Tie("same", first[both], rest[both], misfit.site.where))
                done = True
    return done


def _balance(misfit: Misfit, parts: list[Tensor]) -> Balance:
    where = misfit.site.where
    return Balance(tuple(p[p >= 0] for p in parts), where.op, where.module)


def _find(model: nn.Module, misfit: Misfit, value: int, labels: Tensor) -> Count | None:
    """An attribute of the module, or of one around it, that is this number."""
    for module, attribute, held in _attributes(model, misfit.site.where.module):
        if isinstance(held, int) and held == value:
            return Count(module, attribute, None, labels)
    return None


def _attributes(model: nn.Module, name: str) -> Iterator[tuple[str, str, Any]]:
    """Whole numbers and lists of them, from the module outwards."""
    while True:
        module = model.get_submodule(name)
        for attribute, value in vars(module).items():
            if attribute.startswith("_") or isinstance(value, bool):
                continue
            numbers = isinstance(value, (list, tuple)) and all(type(v) is int for v in value)
            if type(value) is int or (numbers and value):
                yield name, attribute, value
        if not name:
            return
        name = name.rpartition(".")[0]


def _add_all(answers: Answers, counts: list[Count | None], misfit: Misfit) -> Answers | None:
    """All of these numbers, or none of them."""
    for count in counts:
        if count is None:
            return None
        answers = _add(answers, count, misfit)
    return answers


def _add(answers: Answers, count: Count, misfit: Misfit) -> Answers:
    """A number that counts two sets of channels ties their sizes to each other."""
    for old in answers.counts:
        same = (old.module, old.attribute, old.item) == (count.module, count.attribute, count.item)
        if same and torch.equal(old.labels, count.labels):
            return answers
        if same:
            both = _balance(misfit, [old.labels, count.labels])
            return replace(answers, balances=(*answers.balances, both))
    return replace(answers, counts=(*answers.counts, count))
