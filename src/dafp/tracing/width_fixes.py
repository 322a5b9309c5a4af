"""Fixes for width mismatches: how pruning treats channel counts in forward code.

For each mismatch these fixes are tried in turn, until a trial succeeds: pruning changes an
attribute of the module that equals the channel count; parts must stay equally wide; channels are
tied; as the last resort, channels are kept.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..graph.label_index import EvenSplit, WidthAttribute
from ..graph.trace_log import KeepReason, RecordedCall, Tie, TraceLog
from .checked_widths import checked_widths
from .groups import Grouping
from .labels import varied
from .trial import WidthMismatch
from .width_candidates import WidthFix, candidates_for, labels_of, numbers_in_place

OperatorPosition = tuple[str, int]  # (name of the pass, position of the call in it)
# the same operator in other modules of a class: (class, operator, how many calls come before it)
_Kind = tuple[type, str, int]


@dataclass
class WidthFixes:
    """The fix chosen for each mismatch so far."""

    known: tuple[WidthAttribute, ...] = ()  # attributes known to be widths without a trial
    chosen: dict[OperatorPosition, WidthFix] = field(default_factory=dict)
    attempts: dict[OperatorPosition, int] = field(default_factory=dict)
    whole_norms: set[str] = field(default_factory=set)  # norms that selections must not narrow
    patient: bool = True  # else keep the channels at once, of all modules of the same class
    in_vain: set[_Kind] = field(default_factory=set)  # none of their width attributes helped
    waited: Counter[OperatorPosition] = field(default_factory=Counter)  # trials, for other calls
    failed: set[OperatorPosition] = field(default_factory=set)  # did not match in the last trial

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

    def try_all(
        self,
        model: nn.Module,
        log: TraceLog,
        mismatches: Sequence[WidthMismatch],
        run: str,
        calls: list[RecordedCall],
        grouping: Grouping,
    ) -> None:
        """Choose the next fix for every mismatch of a trial. Ties go into the trace log."""
        places = {(run, mismatch.number) for mismatch in mismatches}
        modules = Counter(mismatch.recorded.where.module for mismatch in mismatches)
        modules.update(self._drop_breaking(places, calls))
        for mismatch in mismatches:
            alone = modules[mismatch.recorded.where.module] == 1
            self.try_next(model, log, mismatch, run, calls, grouping, alone=alone)
        self.failed = places

    def try_next(
        self,
        model: nn.Module,
        log: TraceLog,
        mismatch: WidthMismatch,
        run: str,
        calls: list[RecordedCall],
        grouping: Grouping,
        *,
        alone: bool = True,
    ) -> None:
        """Choose the next fix for one mismatch. Ties and kept labels go into the trace log.

        `alone`: it is the only one in its module. If not, it may follow from the others, and waits
        for their fixes: an error, a call that did match, and, for a trial, one for which there is
        but a guess, for two, one for which there is nothing: it may compute its number from theirs.
        """
        place, kinds = (run, mismatch.number), _kinds(model, calls)
        kind = kinds[mismatch.number]
        alike = [r for r, other in zip(calls, kinds, strict=True) if other == kind]
        candidates = list(candidates_for(model, mismatch, grouping, calls))
        if mismatch.refused:
            checked = map(WidthFix, checked_widths(model, mismatch.recorded, alike))
            view = numbers_in_place(model, mismatch, grouping.roots)
            candidates = [*view, *checked, *candidates]
        follows = mismatch.refused or (place in self.chosen and place not in self.failed)
        guess = bool(candidates) and _is_guess(model, candidates[0], mismatch.recorded.where.module)
        turns = 1 if guess else 2 * (not candidates)
        if self.patient and not alone and (follows or self.waited[place] < turns):
            self.waited[place] += 1
            return
        attempt = self.attempts.get(place, 0)
        if not self.patient:
            attempt = max(attempt, len(candidates) + 1)
        elif kind in self.in_vain:
            attempt = max(attempt, len(candidates))
        self.attempts[place] = attempt + 1
        if attempt < len(candidates):
            self.chosen[place] = candidates[attempt]
            self._choose_alike(model, place, candidates[:attempt], kinds, calls, grouping)
            return
        if mismatch.refused and self._drop_suspects(place, calls):
            return
        self.chosen.pop(place, None)
        self.in_vain.add(kind)
        if attempt == len(candidates) and _tie_columns(log, mismatch, grouping.roots):
            return
        labels = labels_of(mismatch.recorded)
        if not self.patient:
            labels += [facet for recorded in alike for facet in labels_of(recorded)]
        if attempt > len(candidates) + 1:  # it depends on another width of this module
            module = mismatch.recorded.where.module
            in_module = [s for s in calls if _within(s.where.module, module)]
            labels += [facet for recorded in in_module for facet in recorded.inputs]
        flat = torch.cat([f.reshape(-1) for f in labels])
        reason = "the forward contains this width as a number"
        log.keep_reasons.append(KeepReason(flat[flat >= 0], mismatch.recorded.where, reason))

    def _drop_breaking(self, places: set[OperatorPosition], calls: list[RecordedCall]) -> list[str]:
        """Drop attributes chosen last if a call of their module did match before, but not now.

        Dimensions of a head may be as many as heads. Returns the modules.
        """
        broken = {calls[n].where.module for _, n in places & (self.chosen.keys() - self.failed)}
        runs = {run for run, _ in places}
        latest = [p for p in self.failed if p in self.chosen and p[0] in runs]
        wrong = [
            place
            for place in latest
            if calls[place[1]].where.module in broken and self.chosen[place].width_attributes
        ]
        for place in wrong:
            del self.chosen[place]
        return [calls[number].where.module for _, number in wrong]

    def _drop_suspects(self, place: OperatorPosition, calls: list[RecordedCall]) -> bool:
        """Drop attributes that equal a width by chance: the forward fails where they changed.

        They are suspect if a module around this call and around the call of the width owns them: a
        number of layers, or the number of one. True if there are any.
        """
        run, module = place[0], calls[place[1]].where.module
        suspects = [
            other
            for other, fix in self.chosen.items()
            if other != place and other[0] == run
            for count in fix.width_attributes
            if count.module != calls[other[1]].where.module and _within(module, count.module)
        ]
        for other in dict.fromkeys(suspects):
            del self.chosen[other]
        return bool(suspects)

    def _choose_alike(
        self,
        model: nn.Module,
        place: OperatorPosition,
        before: Sequence[WidthFix],
        kinds: list[_Kind],
        calls: list[RecordedCall],
        grouping: Grouping,
    ) -> None:
        """Choose the same attributes for the same operator in other modules of the class.

        Of many layers of attention, a trial that fails may reach only the first. `before`: the
        fixes that were tried before this one.
        """
        run, first = place
        fix, module = self.chosen[place], calls[first].where.module
        if fix.even_splits and calls[first].where.op in ("split", "slice"):
            return
        named = _named(fix, module)
        nth = sum(_named(other, module) == named for other in before)
        for number, kind in enumerate(kinds):
            other = (run, number)
            if kind != kinds[first] or other in self.attempts:
                continue
            recorded = calls[number]
            alike = WidthMismatch(number, recorded, recorded.ints)
            found = candidates_for(model, alike, grouping, calls)
            fits = [c for c in found if _named(c, recorded.where.module) == named]
            if nth < len(fits):
                self.chosen[other] = fits[nth]


def _is_guess(model: nn.Module, fix: WidthFix, module: str) -> bool:
    """Does the fix change nothing that counts heads, in a module that has such a count?

    It changes other attributes, or takes the number of a view for the width of another tensor.
    """
    names = [count.attribute for count in fix.width_attributes]
    counts = any("heads" in name for name in vars(model.get_submodule(module)))
    width = any("view" in even_split.op for even_split in fix.even_splits)
    return counts and (bool(names) or width) and not any("heads" in name for name in names)


def _within(module: str, other: str) -> bool:
    """Is this module the other one, or a part of it?"""
    return f"{module}.".startswith(f"{other}." * bool(other))


def _named(fix: WidthFix, module: str) -> tuple[bool, list[tuple[int, str, int | None]]]:
    """Whether parts are even, and the attributes: how far up from the module, name, position."""
    depth = module.count(".") + bool(module)
    return bool(fix.even_splits), [
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


def _is_one(facet: Tensor, axis: int, roots: Tensor) -> bool:
    """Are the labels along this axis, at the first position of the others, one channel?"""
    first = facet.movedim(axis, 0).flatten(1)[:, 0]
    return bool((roots[first.clamp(min=0)] == roots[first[:1].clamp(min=0)]).all())


def _tie_columns(log: TraceLog, mismatch: WidthMismatch, roots: Tensor) -> bool:
    """Tie channels that are on several axes along all but the longest. True if any were tied.

    Axes of one channel, such as the dimensions of a head, are not the longest: nothing is tied if
    one channel would be left.
    """
    done = False
    for facet in labels_of(mismatch.recorded):
        axes = varied(facet)
        if any(facet.select(axis, 0).numel() > 1 and _is_one(facet, axis, roots) for axis in axes):
            continue
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
