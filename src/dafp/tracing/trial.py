"""One trial: runs a skeleton of other widths, and finds the operators that need the old widths.

Forward code may contain channel counts (`x.split(self.splits)`, `chunk(2)`, fixed slices). The
trial compares each operator call with the recorded one: the output must have the recorded labels,
each as often as the new widths say. If not, the call is reported as a mismatch, and the run goes on
with the expected output, so that one run finds all mismatches.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..graph.label_index import LabelIndex
from ..graph.trace_log import Location, NormUse, RecordedCall, TraceLog
from ..network.leaves import ints_in, leaves, numbers_in
from .call import Call
from .dispatch import LabelMode
from .label_tracker import ChannelInfo, LabelTracker
from .labels import UNWRITTEN, varied
from .rules.data_movement import cat
from .rules.layers import batch_norm, convolution
from .rules.pointwise import image_only, pointwise, unary


@dataclass(frozen=True)
class WidthMismatch:
    """An operator call whose output does not match the widths of the trial."""

    number: int  # position of the call in the pass
    recorded: RecordedCall
    ints: tuple[int, ...]  # the integers it was called with in the trial
    refused: bool = False  # the forward raised an error before this call


aten = torch.ops.aten
_CUTS = ("slice", "split", "split_with_sizes")


class DifferentPathError(RuntimeError):
    """At other widths the forward calls other operators."""


class TrialTracker(LabelTracker):
    """Checks ties and kept labels against the trace log instead of recording them."""

    def __init__(self, log: TraceLog, roots: Tensor, label_index: LabelIndex, kept: Tensor) -> None:
        super().__init__(TraceLog(log.blocks))
        self.roots = roots  # label -> class
        self.free = label_index.group_of >= 0  # label -> may be removed
        self.selects = torch.zeros_like(self.free)  # label -> is in a selection
        for selection in label_index.selections:
            self.selects[selection.target] = True
        self.kept = kept  # label -> how often it is kept
        self.fits = True
        self.count_macs = False
        self.resized: dict[int, tuple[Tensor, Tensor]] = {}  # by id of the label tensor

    def resize(self, label: Tensor) -> Tensor:
        """The label tensor at the widths of the trial; a label may be repeated."""
        known = self.resized.get(id(label))
        if known is None:
            known = self.resized[id(label)] = (label, self._resize(label))
        return known[1]

    def _resize(self, label: Tensor) -> Tensor:
        times = torch.where(label < 0, 1, self.kept[label.clamp(min=0)])
        if len(varied(label)) == 1:
            return label.repeat_interleave(times.reshape(-1), varied(label)[0])
        for axis in varied(label):  # the axis that alone decides how often a label is kept
            rows = times.movedim(axis, 0).flatten(1) if label.dim() > 1 else times[:, None]
            if bool((rows == rows[:, :1]).all()):
                return label.repeat_interleave(rows[:, 0], axis)
        for axis in varied(label):  # the kept labels are no rectangle: they will not match
            others = [a for a in range(label.dim()) if a != axis]
            some = times.sum(others) > 0 if others else times > 0
            label, times = (t.index_select(axis, some.nonzero().flatten()) for t in (label, times))
        return label

    def tie(self, kind: str, a: Tensor, b: Tensor, where: Location) -> None:
        a, b = torch.broadcast_tensors(a, b)
        both = (a >= 0) & (b >= 0)
        if kind == "consume":  # a selection may take some channels of the stream
            both &= ~self.selects[b.clamp(min=0)]
        if not torch.equal(self.roots[a[both]], self.roots[b[both]]):
            self.fits = False

    def classes_of(self, label: Tensor) -> Tensor:
        return self.roots[label]

    def keep(self, label: Tensor, where: Location, reason: str) -> None:
        label = label[label >= 0]
        if bool(self.free[label].any()):
            self.fits = False

    def keep_mixed(self, *_: Any) -> None:
        pass  # labels are repeated here

    def role(self, role: str, label: Tensor) -> None:
        pass

    def note_norm(self, use: NormUse) -> None:
        pass

    def sum_of(self, a: Tensor, b: Tensor, where: Location) -> Tensor:
        return a

    def index_entries(self, name: str, source: Tensor, where: Location) -> Tensor:
        block = next(b for b in self.log.blocks if b.tensor == name)
        return self.resize(torch.arange(block.start, block.start + block.size))


class TrialMode(LabelMode):
    """Compares a pass at other widths with the recorded one, and collects mismatches."""

    def __init__(
        self,
        mode: LabelMode,
        tracker: TrialTracker,
        calls: list[RecordedCall],
        constants: list[tuple[float, ...]],
        balanced: frozenset[int],
    ) -> None:
        super().__init__(tracker, mode.rules, mode.default_rule, mode.tensor_kind, mode.running)
        self.trial = tracker
        self.expected = calls
        self.expected_constants = constants
        self.balanced = balanced  # positions of operators whose parts are known to be even
        self.position = 0
        self.lost_track = False
        self.mismatches: list[WidthMismatch] = []

    def follow(self, call: Call) -> Any:
        if self._is_whole(call):
            call = Call(self.trial, aten.alias.default, call.args[:1], {}, call.where.module)
        recorded = self._next_recorded(call)
        self.trial.fits = True
        try:
            call.out = self.run(call.func, call.args, call.kwargs)
            rule = self.rule_for(call.func)
            shape_suffices = rule in _SHAPE_SUFFICES and not self.trial.fills
            if not shape_suffices:
                rule(call)
            self._compare(call, recorded, shape_suffices)
        except (RuntimeError, ValueError, IndexError, TypeError):
            self.trial.fits = False
        if self._splits_evenly(call, recorded) and self.position not in self.balanced:
            self.trial.fits = False  # uneven parts may fit by chance; only even parts always do
        if not self.trial.fits:
            if not self.lost_track or recorded.where.op in _CUTS:
                self.mismatches.append(WidthMismatch(self.position, recorded, ints_in(call.args)))
            call.out = self._expected_output(call, recorded)
        for tensor, info in zip(leaves(call.out), recorded.outputs, strict=True):
            if info is not None and not self._open(self.trial.facets(tensor)):
                facets = self._resized_facets(info)
                self.trial.set_info(
                    tensor, ChannelInfo(facets, info.is_weight, info.steps, info.name)
                )
        self.position += 1
        return call.out

    def _is_whole(self, call: Call) -> bool:
        """Is this x[:, :n] where n was the whole width, so that it was recorded as an alias?"""
        recorded = self.expected[self.position] if self.position < len(self.expected) else None
        if recorded is None or recorded.op is not aten.alias.default:
            return False
        if call.func is not aten.slice.Tensor:
            return False
        axis, start, end = (call.arg(name) for name in ("dim", "start", "end"))
        return not start and end >= recorded.shapes[0][axis] and call.arg("step") == 1

    def _next_recorded(self, call: Call) -> RecordedCall:
        """The recorded call to compare with. A recorded slice that torch omits is a mismatch."""
        while self.position < len(self.expected):
            recorded = self.expected[self.position]
            if recorded.op is call.func:
                return recorded
            if call.func is aten.view.default and self._is_reshape(self.position):
                self.position += 1  # reshape, which copies only if it must
                return self.expected[self.position]
            if recorded.where.op != "slice":
                break
            self.mismatches.append(WidthMismatch(self.position, recorded, recorded.ints))
            self.position += 1
            self.lost_track = True  # later outputs are too wide: compare only slices
        raise DifferentPathError

    def _is_reshape(self, number: int) -> bool:
        """Are this call and the next one a reshape that copies?"""
        ops = [recorded.op for recorded in self.expected[number : number + 2]]
        return ops == [aten.clone.default, aten._unsafe_view.default]

    @staticmethod
    def _splits_evenly(call: Call, recorded: RecordedCall) -> bool:
        """Is this chunk(), which computes the size of the parts from the width?"""
        if recorded.where.op != "split":
            return False
        whole = max((f.numel() for f in recorded.inputs), default=0)
        slicing = any(
            f.numel() < whole for info in recorded.outputs if info is not None for f in info.facets
        )
        return slicing and ints_in(call.args) != recorded.ints

    def forward_failed(self) -> None:
        """The forward raised an error: report the operator that should have come next."""
        if self.lost_track:
            return
        number = min(self.position, len(self.expected) - 1)
        number += self._is_reshape(number)  # it checks its numbers before it copies
        recorded = self.expected[number]
        self.mismatches.append(WidthMismatch(number, recorded, recorded.ints, refused=True))

    def _compare(self, call: Call, recorded: RecordedCall, shape_suffices: bool) -> None:
        if not self._same_numbers(call, recorded):
            self.trial.fits = False  # a width is used as a plain number
        for number, (tensor, info) in enumerate(
            zip(leaves(call.out), recorded.outputs, strict=True)
        ):
            if not isinstance(tensor, Tensor) or (number > 0 and info is None):
                continue  # statistics and indices that are not used
            if info is not None and self._open(info.facets):
                continue  # nothing was written there: any width is right
            if tuple(tensor.shape) != self._shape(recorded.shapes[number], info):
                self.trial.fits = False
            elif not shape_suffices and not self._open(self.trial.facets(tensor)):
                self._compare_labels(self._resized_facets(info), self.trial.facets(tensor))

    def _same_numbers(self, call: Call, recorded: RecordedCall) -> bool:
        """Whether the numbers among the arguments are those that were recorded.

        Integers may change, because they may be channel counts, except in elementwise operators,
        pooling and resizing.
        """
        now, before = numbers_in(call.values), recorded.numbers
        if torch.Tag.pointwise in call.func.tags or self.rule_for(call.func) in _NUMBERS_MATTER:
            return now == before
        return [n for n in now if type(n) is float] == [n for n in before if type(n) is float]

    def note_constant(self, values: tuple[float, ...]) -> None:
        """Report the next operator if a tensor is created with other values than recorded."""
        super().note_constant(values)
        number, place = len(self.constants) - 1, min(self.position, len(self.expected) - 1)
        if number < len(self.expected_constants) and self.expected_constants[number] != values:
            self.mismatches.append(
                WidthMismatch(place, self.expected[place], self.expected[place].ints)
            )

    def _compare_labels(self, wanted: tuple[Tensor, ...], given: tuple[Tensor, ...]) -> None:
        if len(wanted) != len(given):
            self.trial.fits = False
            return
        for a, b in zip(wanted, given, strict=True):
            if not _broadcastable(a, b) or not self._same(*torch.broadcast_tensors(a, b)):
                self.trial.fits = False

    def _same(self, a: Tensor, b: Tensor) -> bool:
        known = (a >= 0) & (b >= 0)
        strange = ((a < 0) != (b < 0)) & (b != UNWRITTEN) & (a != UNWRITTEN)
        return not bool(strange.any()) and torch.equal(
            self.trial.roots[a[known]], self.trial.roots[b[known]]
        )

    def _resized_facets(self, info: ChannelInfo | None) -> tuple[Tensor, ...]:
        return tuple(self.trial.resize(f) for f in info.facets) if info is not None else ()

    def _shape(self, shape: tuple[int, ...], info: ChannelInfo | None) -> tuple[int, ...]:
        sizes = list(shape)
        for facet in info.facets if info is not None else ():
            for axis in varied(facet):
                sizes[axis] = self.trial.resize(facet).shape[axis]
        return tuple(sizes)

    def _expected_output(self, call: Call, recorded: RecordedCall) -> Any:
        """Tensors of the expected shapes."""
        if recorded.op.overloadpacket.__name__.endswith("_") and call.args:
            return call.args[0]  # in place: the tensor itself
        like = call.tensors[0]
        parts = [
            self.run(aten.new_empty.default, (like, self._shape(shape, info)), {})
            for info, shape in zip(recorded.outputs, recorded.shapes, strict=True)
        ]
        return recorded.kind(parts) if issubclass(recorded.kind, (list, tuple)) else parts[0]

    def _open(self, facets: tuple[Tensor, ...]) -> bool:
        """Are there channels that nothing was written into?"""
        return self.trial.fills and any(bool((facet == UNWRITTEN).any()) for facet in facets)


def _broadcastable(a: Tensor, b: Tensor) -> bool:
    """Labels may be constant along an axis of one only: the repeated dimensions of a head."""
    same = (x == y or 1 in (x, y) for x, y in zip(a.shape, b.shape, strict=False))
    return a.dim() == b.dim() and all(same)


# rules whose output has the expected labels if the inputs have theirs and the shape is right
_SHAPE_SUFFICES = (convolution, batch_norm, pointwise, unary, image_only, cat)
_NUMBERS_MATTER = (image_only,)
