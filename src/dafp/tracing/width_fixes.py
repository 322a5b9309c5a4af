"""Fixes for width mismatches: how pruning treats channel counts in forward code.

For each mismatch these fixes are tried in turn, until a trial succeeds: pruning changes an
attribute of the module that equals the channel count; parts must stay equally wide; channels are
tied; as the last resort, channels are kept.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..graph.label_index import EvenSplit, WidthAttribute
from ..graph.trace_log import KeepReason, RecordedCall, Tie, TraceLog
from .checked_widths import checked_widths
from .labels import varied
from .trial import WidthMismatch

aten = torch.ops.aten
OperatorPosition = tuple[str, int]  # (name of the pass, position of the call in it)
# the same operator in other modules of a class: (class, operator, how many calls come before it)
_Kind = tuple[type, str, int]


@dataclass(frozen=True)
class WidthFix:
    """One fix for one mismatch: attributes that pruning changes, and parts of equal width."""

    width_attributes: tuple[WidthAttribute, ...] = ()
    even_splits: tuple[EvenSplit, ...] = ()


@dataclass
class WidthFixes:
    """The fix chosen for each mismatch so far."""

    known: tuple[WidthAttribute, ...] = ()  # attributes known to be widths without a trial
    chosen: dict[OperatorPosition, WidthFix] = field(default_factory=dict)
    attempts: dict[OperatorPosition, int] = field(default_factory=dict)
    whole_norms: set[str] = field(default_factory=set)  # norms that selections must not narrow
    patient: bool = True  # else keep the channels at once, of all modules of the same class
    in_vain: set[_Kind] = field(default_factory=set)  # none of their width attributes helped

    @property
    def width_attributes(self) -> tuple[WidthAttribute, ...]:
        first: dict[tuple[str, str, int | None], WidthAttribute] = {}
        for count in (
            *self.known,
            *(c for fix in self.chosen.values() for c in fix.width_attributes),
        ):
            first.setdefault((count.module, count.attribute, count.item), count)
        return tuple(first.values())

    @property
    def even_splits(self) -> tuple[EvenSplit, ...]:
        """Parts of equal width. An attribute that counts two sets of channels adds such a pair."""
        first = {(c.module, c.attribute, c.item): c for c in self.width_attributes}
        found: list[EvenSplit] = []
        for fix in self.chosen.values():
            found += fix.even_splits
            for count in fix.width_attributes:
                other = first[count.module, count.attribute, count.item]
                if not torch.equal(other.labels, count.labels):
                    found.append(EvenSplit((other.labels, count.labels), "a number", count.module))
        return tuple(found)

    def try_next(
        self,
        model: nn.Module,
        log: TraceLog,
        mismatch: WidthMismatch,
        run: str,
        calls: list[RecordedCall],
        roots: Tensor,
    ) -> None:
        """Choose the next fix for one mismatch. Ties and kept labels go into the trace log.

        `roots`: label -> class.
        """
        place, kinds = (run, mismatch.number), _kinds(model, calls)
        kind = kinds[mismatch.number]
        alike = [r for r, other in zip(calls, kinds, strict=True) if other == kind]
        candidates = list(_candidates(model, mismatch, roots))
        if mismatch.refused:
            checked = checked_widths(model, mismatch.recorded, alike)
            candidates = [*map(WidthFix, checked), *candidates]
        attempt = self.attempts.get(place, 0)
        if not self.patient:
            attempt = max(attempt, len(candidates) + 1)
        elif kind in self.in_vain:
            attempt = max(attempt, len(candidates))
        self.attempts[place] = attempt + 1
        if attempt < len(candidates):
            self.chosen[place] = candidates[attempt]
            self._choose_alike(model, candidates[attempt], place, calls, kinds, roots)
            return
        self.chosen.pop(place, None)
        self.in_vain.add(kind)
        if attempt == len(candidates) and _tie_columns(log, mismatch):
            return
        labels = _labels(mismatch.recorded)
        if not self.patient:
            labels += [facet for recorded in alike for facet in _labels(recorded)]
        if attempt > len(candidates) + 1:  # it depends on another width of this module
            module = mismatch.recorded.where.module
            in_module = [
                s for s in calls if f"{s.where.module}.".startswith(f"{module}." * bool(module))
            ]
            labels += [facet for recorded in in_module for facet in recorded.inputs]
        flat = torch.cat([f.reshape(-1) for f in labels])
        reason = "the forward contains this width as a number"
        log.keep_reasons.append(KeepReason(flat[flat >= 0], mismatch.recorded.where, reason))

    def _choose_alike(
        self,
        model: nn.Module,
        fix: WidthFix,
        place: OperatorPosition,
        calls: list[RecordedCall],
        kinds: list[_Kind],
        roots: Tensor,
    ) -> None:
        """Choose the same attributes for the same operator in other modules of the class.

        Of many layers of attention, a trial that fails may reach only the first.
        """
        run, first = place
        if fix.even_splits:
            return
        for number, kind in enumerate(kinds):
            other = (run, number)
            if kind != kinds[first] or other in self.attempts or other in self.chosen:
                continue
            recorded = calls[number]
            names = _relative(fix, calls[first].where.module)
            for candidate in _candidates(
                model, WidthMismatch(number, recorded, recorded.ints), roots
            ):
                if _relative(candidate, recorded.where.module) == names:
                    self.chosen[other] = candidate
                    break


def _relative(fix: WidthFix, module: str) -> list[tuple[int, str, int | None]]:
    """The attributes of a fix: how far up from the module, name, position."""
    depth = module.count(".") + bool(module)
    return [
        (depth - c.module.count(".") - bool(c.module), c.attribute, c.item)
        for c in fix.width_attributes
    ]


def _kinds(model: nn.Module, calls: list[RecordedCall]) -> list[_Kind]:
    """The kind of every call of a pass."""
    kinds, seen = [], Counter[str]()
    for recorded in calls:
        module = recorded.where.module
        kinds.append((type(model.get_submodule(module)), recorded.where.op, seen[module]))
        seen[module] += 1
    return kinds


def _labels(recorded: RecordedCall) -> list[Tensor]:
    outputs = [f for info in recorded.outputs if info is not None for f in info.facets]
    return [*recorded.inputs, *outputs, torch.empty(0, dtype=torch.long)]


def _candidates(model: nn.Module, mismatch: WidthMismatch, roots: Tensor) -> Iterator[WidthFix]:
    packet = mismatch.recorded.op.overloadpacket
    if packet in (aten.split, aten.split_with_sizes):
        yield from _split(model, mismatch)
    elif packet is aten.slice:
        yield from _slice(model, mismatch)
    else:
        yield from _numbers(model, mismatch, roots)


def _split(model: nn.Module, mismatch: WidthMismatch) -> Iterator[WidthFix]:
    """`split(size)` and `split(sizes)`: the sizes are attributes, or the parts are even."""
    parts = [info.facets[0].reshape(-1) for info in mismatch.recorded.outputs if info is not None]
    if len(parts) != len(mismatch.recorded.outputs):
        return
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
        found = [next(_find(model, mismatch, part), None) for part in parts]
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


def _numbers(model: nn.Module, mismatch: WidthMismatch, roots: Tensor) -> Iterator[WidthFix]:
    """Any operator with an integer argument that is the width of an axis.

    An axis of one channel has no width of its own: the dimensions of a head go together.
    """
    vectors = []
    for facet in _labels(mismatch.recorded):
        for axis in varied(facet):
            first = (slice(None) if a == axis else 0 for a in range(facet.dim()))
            vector = facet[tuple(first)].reshape(-1)
            if not _is_one_channel(vector, roots):
                vectors.append(vector)
    unchanged = set(mismatch.ints) & set(mismatch.recorded.ints)
    choices: dict[int, list[WidthAttribute]] = {}
    for vector in vectors:
        if vector.numel() in unchanged and vector.numel() not in choices:
            choices[vector.numel()] = list(_find(model, mismatch, vector))
    found = [c for c in choices.values() if c]
    for number in range(max((len(c) for c in found), default=0)):
        yield WidthFix(tuple(c[min(number, len(c) - 1)] for c in found))


def _is_one_channel(vector: Tensor, roots: Tensor) -> bool:
    classes = roots[vector[vector >= 0]]
    return classes.numel() == vector.numel() and bool((classes == classes[0]).all())


def _tie_columns(log: TraceLog, mismatch: WidthMismatch) -> bool:
    """Tie channels that are on several axes along all but the longest. True if any were tied."""
    done = False
    for facet in _labels(mismatch.recorded):
        axes = varied(facet)
        longest = max(axes, key=lambda axis: facet.shape[axis], default=None)
        for axis in axes:
            if axis != longest:
                first = facet.narrow(axis, 0, 1).expand_as(facet).reshape(-1)
                rest = facet.reshape(-1)
                both = (first >= 0) & (rest >= 0) & (first != rest)
                if bool(both.any()):
                    log.ties.append(Tie("same", first[both], rest[both], mismatch.recorded.where))
                    done = True
    return done


def _balance(mismatch: WidthMismatch, parts: list[Tensor]) -> EvenSplit:
    where = mismatch.recorded.where
    return EvenSplit(tuple(p[p >= 0] for p in parts), where.op, where.module)


def _find(model: nn.Module, mismatch: WidthMismatch, labels: Tensor) -> Iterator[WidthAttribute]:
    """Attributes of the module, or of modules that contain it, that equal the number of labels.

    Those with "heads" in their name come first: dimensions of a head may be as many.
    """
    found = _attributes(model, mismatch.recorded.where.module)
    for module, attribute, held in sorted(found, key=lambda entry: "heads" not in entry[1]):
        if held == labels.numel():
            yield WidthAttribute(module, attribute, None, labels)


def _attributes(model: nn.Module, name: str) -> Iterator[tuple[str, str, Any]]:
    """Integer attributes and lists of integers: of the module, of those around it, of its parts.

    Parts last: a forward may call other methods of them (a table of positions makes its bias).
    """
    parts = model.get_submodule(name)._modules.items()
    inner = [f"{name}.{key}".lstrip(".") for key, part in parts if part is not None]
    names = [name]
    while name:
        name = name.rpartition(".")[0]
        names.append(name)
    for module in (*names, *inner):
        for attribute, value in vars(model.get_submodule(module)).items():
            numbers = isinstance(value, (list, tuple)) and all(type(v) is int for v in value)
            if not attribute.startswith("_") and (type(value) is int or (numbers and value)):
                yield module, attribute, value
