"""Try a narrower network out, without numbers: where does its forward insist on the old widths?

Forward code may hold channel counts (`x.split(self.splits)`, `chunk(2)`, fixed slices). The trial
removes some channels of every group, runs the narrower skeleton, and compares each operator with
the first pass: the labels that come out must be the old ones less the removed. Where they are not,
it goes on with what should have come out, so that one run finds all such places.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.label_index import Structure
from ..graph.trace_log import Record, Site, Where
from .call import Call, ints_in, leaves, numbers_in
from .dispatch import Flow
from .labels import ANYBODY, varied
from .rules.data_movement import cat
from .rules.layers import batch_norm, convolution
from .rules.pointwise import image_only, pointwise, unary
from .tags import Ledger, Tag


@dataclass(frozen=True)
class Misfit:
    """An operator that does not give what the narrower network needs."""

    number: int  # position of the operator in the pass
    site: Site
    ints: tuple[int, ...]  # the numbers it was called with this time


aten = torch.ops.aten
_CUTS = ("slice", "split", "split_with_sizes")


class StrayError(RuntimeError):
    """The narrower network takes another way through its code."""


class TrialLedger(Ledger):
    """Instead of recording, checks that nothing new is said."""

    def __init__(self, record: Record, roots: Tensor, structure: Structure, alive: Tensor) -> None:
        super().__init__(Record(record.blocks))
        self.roots = roots  # label -> class
        self.free = structure.group_of >= 0  # label -> may be removed
        self.selects = torch.zeros_like(self.free)  # label -> belongs to a selecting reader
        for selection in structure.selections:
            self.selects[selection.target] = True
        self.alive = alive  # label -> how often it stays
        self.fits = True
        self.count_macs = False
        self.narrowed: dict[int, tuple[Tensor, Tensor]] = {}  # id of labels -> they, what is left

    def narrow(self, label: Tensor) -> Tensor:
        """What the trial leaves of a label tensor; a label may stay more than once."""
        known = self.narrowed.get(id(label))
        if known is None:
            known = self.narrowed[id(label)] = (label, self._narrow(label))
        return known[1]

    def _narrow(self, label: Tensor) -> Tensor:
        times = torch.where(label < 0, 1, self.alive[label.clamp(min=0)])
        for axis in varied(label):  # the axis that alone decides how often a label stays
            rows = times.movedim(axis, 0).flatten(1) if label.dim() > 1 else times[:, None]
            if bool((rows == rows[:, :1]).all()):
                return label.repeat_interleave(rows[:, 0], axis)
        for axis in varied(label):  # no rectangle: this will not fit
            others = [a for a in range(label.dim()) if a != axis]
            some = times.sum(others) > 0 if others else times > 0
            label, times = (t.index_select(axis, some.nonzero().flatten()) for t in (label, times))
        return label

    def tie(self, kind: str, a: Tensor, b: Tensor, where: Where) -> None:
        a, b = torch.broadcast_tensors(a, b)
        both = (a >= 0) & (b >= 0)
        if kind == "read":  # a selection may cut what it reads from the stream
            both &= ~self.selects[b.clamp(min=0)]
        if not torch.equal(self.roots[a[both]], self.roots[b[both]]):
            self.fits = False

    def keep(self, label: Tensor, where: Where, reason: str) -> None:
        label = label[label >= 0]
        if bool(self.free[label].any()):
            self.fits = False

    def role(self, role: str, label: Tensor) -> None:
        pass

    def sum_of(self, a: Tensor, b: Tensor, where: Where) -> Tensor:
        return a

    def index_entries(self, name: str, source: Tensor, where: Where) -> Tensor:
        block = next(b for b in self.record.blocks if b.tensor == name)
        return self.narrow(torch.arange(block.start, block.start + block.size))


class TrialFlow(Flow):
    """Follows the pass of a narrower network and collects misfits."""

    def __init__(
        self, flow: Flow, ledger: TrialLedger, sites: list[Site],
        constants: list[tuple[float, ...]], balanced: frozenset[int],
    ) -> None:  # fmt: skip
        super().__init__(ledger, flow.rules, flow.otherwise, flow.material, flow.running)
        self.trial = ledger
        self.expected = sites
        self.expected_constants = constants
        self.balanced = balanced  # operators whose parts are known to be even
        self.position = 0
        self.astray = False
        self.misfits: list[Misfit] = []

    def follow(self, call: Call) -> Any:
        if self._is_whole(call):
            call = Call(self.trial, aten.alias.default, call.args[:1], {}, call.where.module)
        site = self._next_site(call)
        self.trial.fits = True
        try:
            call.out = self.run(call.func, call.args, call.kwargs)
            rule = self.rule_for(call.func)
            shape_tells = rule in _SHAPE_TELLS and not self.trial.fills
            if not shape_tells:
                rule(call)
            self._compare(call, site, shape_tells)
        except (RuntimeError, ValueError, IndexError, TypeError):
            self.trial.fits = False
        if self._splits_evenly(call, site) and self.position not in self.balanced:
            self.trial.fits = False  # it may fit by chance, but only even parts always do
        if not self.trial.fits:
            if not self.astray or site.where.op in _CUTS:
                self.misfits.append(Misfit(self.position, site, ints_in(call.args)))
            call.out = self._what_should_be(call, site)
        for tensor, tag in zip(leaves(call.out), site.outputs, strict=True):
            if tag is not None and not self._open(self.trial.facets(tensor)):
                facets = self._narrow_facets(tag)
                self.trial.tag(tensor, Tag(facets, tag.is_weight, tag.steps, tag.name))
        self.position += 1
        return call.out

    def _is_whole(self, call: Call) -> bool:
        """x[:, :n] where n was the whole width: it stays whole in any network that is narrower."""
        site = self.expected[self.position] if self.position < len(self.expected) else None
        if site is None or site.op is not aten.alias.default:
            return False
        if call.func is not aten.slice.Tensor:
            return False
        axis, start, end = (call.arg(name) for name in ("dim", "start", "end"))
        return not start and end >= site.shapes[0][axis] and call.arg("step") == 1

    def _next_site(self, call: Call) -> Site:
        """What the first pass did here. torch leaves out slices that take the whole axis."""
        while self.position < len(self.expected):
            site = self.expected[self.position]
            if site.op is call.func:
                return site
            if site.where.op != "slice":
                break
            self.misfits.append(Misfit(self.position, site, site.ints))
            self.position += 1
            self.astray = True  # what flows on is too wide: only other cuts are telling now
        raise StrayError

    @staticmethod
    def _splits_evenly(call: Call, site: Site) -> bool:
        """chunk(): the size of the parts is computed from the width."""
        if site.where.op != "split":
            return False
        whole = max((f.numel() for f in site.inputs), default=0)
        cut = any(f.numel() < whole for tag in site.outputs if tag is not None for f in tag.facets)
        return cut and ints_in(call.args) != site.ints

    def give_up(self) -> None:
        """The forward itself failed: the operator that should have come next does not fit."""
        if self.astray:
            return
        number = min(self.position, len(self.expected) - 1)
        site = self.expected[number]
        self.misfits.append(Misfit(number, site, site.ints))

    def _compare(self, call: Call, site: Site, shape_tells: bool) -> None:
        if not self._same_numbers(call, site):
            self.trial.fits = False  # a width used as a plain number
        for number, (tensor, tag) in enumerate(zip(leaves(call.out), site.outputs, strict=True)):
            if not isinstance(tensor, Tensor) or (number > 0 and tag is None):
                continue  # statistics and indices that nobody reads on
            if tag is not None and self._open(tag.facets):
                continue  # nothing was ever written there: any width will do
            if tuple(tensor.shape) != self._shape(site.shapes[number], tag):
                self.trial.fits = False
            elif not shape_tells and not self._open(self.trial.facets(tensor)):
                self._compare_labels(self._narrow_facets(tag), self.trial.facets(tensor))

    def _same_numbers(self, call: Call, site: Site) -> bool:
        """Whole numbers may count channels, but not in an operator that works entry by entry."""
        now, before = numbers_in((call.args, call.kwargs)), site.numbers
        if torch.Tag.pointwise in call.func.tags or self.rule_for(call.func) in _MINDS_NUMBERS:
            return now == before
        return [n for n in now if type(n) is float] == [n for n in before if type(n) is float]

    def note_constant(self, values: tuple[float, ...]) -> None:
        """A tensor made of a number that is another one now: a width, met by what comes next."""
        super().note_constant(values)
        number, place = len(self.constants) - 1, min(self.position, len(self.expected) - 1)
        if number < len(self.expected_constants) and self.expected_constants[number] != values:
            self.misfits.append(Misfit(place, self.expected[place], self.expected[place].ints))

    def _compare_labels(self, wanted: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> None:
        if len(wanted) != len(given):
            self.trial.fits = False
            return
        for a, b in zip(wanted, given, strict=True):
            if a.shape != b.shape or not self._same(a, b):
                self.trial.fits = False

    def _same(self, a: Tensor, b: Tensor) -> bool:
        known = (a >= 0) & (b >= 0)
        strange = ((a < 0) != (b < 0)) & (b != ANYBODY) & (a != ANYBODY)
        return not bool(strange.any()) and torch.equal(
            self.trial.roots[a[known]], self.trial.roots[b[known]]
        )

    def _narrow_facets(self, tag: Tag | None) -> tuple[Tensor, ...]:
        return tuple(self.trial.narrow(f) for f in tag.facets) if tag is not None else ()

    def _shape(self, shape: tuple[int, ...], tag: Tag | None) -> tuple[int, ...]:
        sizes = list(shape)
        for facet in tag.facets if tag is not None else ():
            for axis in varied(facet):
                sizes[axis] = self.trial.narrow(facet).shape[axis]
        return tuple(sizes)

    def _what_should_be(self, call: Call, site: Site) -> Any:
        """Tensors of the right shape in place of what went wrong."""
        if site.op.overloadpacket.__name__.endswith("_") and call.args:
            return call.args[0]  # in place: the tensor itself
        like = call.tensors[0]
        parts = [
            self.run(like.new_empty, (self._shape(shape, tag),), {})
            for tag, shape in zip(site.outputs, site.shapes, strict=True)
        ]
        return site.kind(parts) if issubclass(site.kind, (list, tuple)) else parts[0]

    def _open(self, facets: tuple[Tensor, ...]) -> bool:
        """Are there channels that nothing was written into yet?"""
        return self.trial.fills and any(bool((facet == ANYBODY).any()) for facet in facets)


# what goes in has the labels it should have: these give what they should if the shape is right
_SHAPE_TELLS = (convolution, batch_norm, pointwise, unary, image_only, cat)
_MINDS_NUMBERS = (image_only,)
