"""What to do about forward code with channel counts written into it.

Each place where a narrower network misfits is answered, in this order: a number among the module's
attributes that counts these channels (it will follow them), parts that must stay equally wide,
channels that must go together, and at last: the channels are kept, and it is said why. An answer
that does not help makes way for the next.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..graph.label_index import Balance, Count
from ..graph.trace_log import Keep, Record, Site, Tie
from .labels import varied
from .trial import Misfit

aten = torch.ops.aten
Place = tuple[str, int]  # (pass, operator)


@dataclass(frozen=True)
class Given:
    """One answer to one misfit."""

    counts: tuple[Count, ...] = ()
    balances: tuple[Balance, ...] = ()


@dataclass
class Answers:
    """What the trials have found out so far."""

    known: tuple[Count, ...] = ()  # numbers that were seen to count channels, trial or not
    given: dict[Place, Given] = field(default_factory=dict)
    attempts: dict[Place, int] = field(default_factory=dict)

    @property
    def counts(self) -> tuple[Count, ...]:
        first: dict[tuple[str, str, int | None], Count] = {}
        for count in (*self.known, *(c for given in self.given.values() for c in given.counts)):
            first.setdefault((count.module, count.attribute, count.item), count)
        return tuple(first.values())

    @property
    def balances(self) -> tuple[Balance, ...]:
        """Parts that must be even; a number that counts two sets of channels makes them so."""
        first = {(c.module, c.attribute, c.item): c for c in self.counts}
        found: list[Balance] = []
        for answer in self.given.values():
            found += answer.balances
            for count in answer.counts:
                other = first[count.module, count.attribute, count.item]
                if not torch.equal(other.labels, count.labels):
                    found.append(Balance((other.labels, count.labels), "a number", count.module))
        return tuple(found)

    def answer(
        self, model: nn.Module, record: Record, misfit: Misfit, run: str, sites: list[Site]
    ) -> None:
        """Give the next answer to one misfit; ties and keeps go into the record."""
        place = (run, misfit.number)
        attempt = self.attempts.get(place, 0)
        self.attempts[place] = attempt + 1
        candidates = list(_candidates(model, misfit))
        if attempt < len(candidates):
            self.given[place] = candidates[attempt]
            return
        self.given.pop(place, None)
        if attempt == len(candidates) and _tie_columns(record, misfit):
            return
        labels = _labels(misfit)
        if attempt > len(candidates) + 1:  # another width in this module is what it depends on
            module = misfit.site.where.module
            inside = [
                s for s in sites if f"{s.where.module}.".startswith(f"{module}." * bool(module))
            ]
            labels += [facet for site in inside for facet in site.inputs]
        flat = torch.cat([f.reshape(-1) for f in labels])
        reason = "the forward has this width written into it"
        record.keeps.append(Keep(flat[flat >= 0], misfit.site.where, reason))


def _labels(misfit: Misfit) -> list[Tensor]:
    outputs = [f for tag in misfit.site.outputs if tag is not None for f in tag.facets]
    return [*misfit.site.inputs, *outputs, torch.empty(0, dtype=torch.long)]


def _candidates(model: nn.Module, misfit: Misfit) -> Iterator[Given]:
    packet = misfit.site.op.overloadpacket
    if packet in (aten.split, aten.split_with_sizes):
        yield from _split(model, misfit)
    elif packet is aten.slice:
        yield from _slice(model, misfit)
    else:
        yield from _numbers(model, misfit)


def _split(model: nn.Module, misfit: Misfit) -> Iterator[Given]:
    """`split(size)` and `split(sizes)`: the numbers are attributes, or the parts are even."""
    parts = [tag.facets[0].reshape(-1) for tag in misfit.site.outputs if tag is not None]
    if len(parts) != len(misfit.site.outputs):
        return
    sizes = [part.numel() for part in parts]
    even = (_balance(misfit, parts),) if len(set(sizes)) == 1 else ()
    if misfit.ints[:-1] != misfit.site.ints[:-1]:  # computed from the width
        if even:
            yield Given((), even)
        return
    if misfit.site.op.overloadpacket is aten.split_with_sizes:
        for module, attribute, value in _attributes(model, misfit.site.where.module):
            if isinstance(value, (list, tuple)) and list(value) == sizes:
                yield Given(
                    tuple(Count(module, attribute, i, part) for i, part in enumerate(parts))
                )
        found = [next(_find(model, misfit, part), None) for part in parts]
        if None not in found:
            yield Given(tuple(count for count in found if count is not None))
    if even:
        for labels in (parts[0], torch.cat(parts)):
            for count in _find(model, misfit, labels):
                yield Given((count,), even)


def _slice(model: nn.Module, misfit: Misfit) -> Iterator[Given]:
    """`x[:, start:end]`: the ends are attributes, or computed from an even division."""
    source, tag = misfit.site.inputs[0].reshape(-1), misfit.site.outputs[0]
    if tag is None or len(varied(misfit.site.inputs[0])) != 1:
        return
    length, ends = tag.facets[0].numel(), misfit.site.ints[1:3]
    start = ends[0] % source.numel() if ends else 0
    even = source.numel() % length == 0 and start % length == 0
    if misfit.ints[1:3] != ends:  # computed from the width
        if even:
            parts = [source[i : i + length] for i in range(0, source.numel(), length)]
            yield Given((), (_balance(misfit, parts),))
        return
    edges = [e for e in (start, start + length) if 0 < e < source.numel()]
    choices = [list(_find(model, misfit, source[:edge])) for edge in edges]
    for number in range(max((len(c) for c in choices), default=0)):
        if all(choices):
            yield Given(tuple(c[min(number, len(c) - 1)] for c in choices))


def _numbers(model: nn.Module, misfit: Misfit) -> Iterator[Given]:
    """Any operator with a number among its arguments that is the width of an axis."""
    vectors = []
    for facet in _labels(misfit):
        for axis in varied(facet):
            first = (slice(None) if a == axis else 0 for a in range(facet.dim()))
            vectors.append(facet[tuple(first)].reshape(-1))
    unchanged = set(misfit.ints) & set(misfit.site.ints)
    choices: dict[int, list[Count]] = {}
    for vector in vectors:
        if vector.numel() in unchanged and vector.numel() not in choices:
            choices[vector.numel()] = list(_find(model, misfit, vector))
    found = [c for c in choices.values() if c]
    for number in range(max((len(c) for c in found), default=0)):
        yield Given(tuple(c[min(number, len(c) - 1)] for c in found))


def _tie_columns(record: Record, misfit: Misfit) -> bool:
    """Channels on several axes at once: tie along all of them but the longest."""
    done = False
    for facet in _labels(misfit):
        axes = varied(facet)
        longest = max(axes, key=lambda axis: facet.shape[axis], default=None)
        for axis in axes:
            if axis != longest:
                first = facet.narrow(axis, 0, 1).expand_as(facet).reshape(-1)
                rest = facet.reshape(-1)
                both = (first >= 0) & (rest >= 0) & (first != rest)
                if bool(both.any()):
                    record.ties.append(Tie("same", first[both], rest[both], misfit.site.where))
                    done = True
    return done


def _balance(misfit: Misfit, parts: list[Tensor]) -> Balance:
    where = misfit.site.where
    return Balance(tuple(p[p >= 0] for p in parts), where.op, where.module)


def _find(model: nn.Module, misfit: Misfit, labels: Tensor) -> Iterator[Count]:
    """Attributes of the module, or of those around it, that are the number of these channels."""
    for module, attribute, held in _attributes(model, misfit.site.where.module):
        if held == labels.numel():
            yield Count(module, attribute, None, labels)


def _attributes(model: nn.Module, name: str) -> Iterator[tuple[str, str, Any]]:
    """Whole numbers and lists of them, from the module outwards."""
    while True:
        for attribute, value in vars(model.get_submodule(name)).items():
            numbers = isinstance(value, (list, tuple)) and all(type(v) is int for v in value)
            if not attribute.startswith("_") and (type(value) is int or (numbers and value)):
                yield name, attribute, value
        if not name:
            return
        name = name.rpartition(".")[0]
