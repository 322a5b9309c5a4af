"""The label tracker of a run: which labels each tensor carries.

Rules look labels up here, and report ties, roles and kept labels, which go into the trace log.
"""

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..graph.trace_log import (
    ElementwiseStep,
    IndexTensor,
    KeepReason,
    Location,
    NormUse,
    Tie,
    TraceLog,
)
from .labels import NO_PRODUCER, UNWRITTEN, mixes, on_axis
from .union_find import Components


@dataclass(frozen=True)
class ChannelInfo:
    """The labels of one tensor.

    A facet is a label tensor. Facets label different axes: an activation has one, for its channels;
    a weight has two, for its outputs and its inputs.
    """

    facets: tuple[Tensor, ...]
    is_weight: bool = False  # computed from parameters and buffers only
    steps: tuple[ElementwiseStep, ...] | None = None  # elementwise functions since the last scale
    name: str = ""  # dotted name, when it is a tensor of the model itself
    # the facet is a view: writing into it changes the labels of the base tensor
    linked: bool = False


Value = TypeVar("Value")


class ByTensor(Generic[Value]):
    """A dictionary with tensors as keys, compared by identity and held by weak references."""

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[Tensor], Value]] = {}

    def get(self, tensor: Tensor) -> Value | None:
        entry = self._entries.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def __setitem__(self, tensor: Tensor, value: Value) -> None:
        self._entries[id(tensor)] = (weakref.ref(tensor), value)


class LabelTracker:
    """Looks up the labels of tensors, and records ties, roles and kept labels in the trace log."""

    def __init__(self, log: TraceLog) -> None:
        self.log = log
        self._components = Components()
        self.info: ByTensor[ChannelInfo] = ByTensor()
        self.names: ByTensor[str] = ByTensor()  # tensor of the model -> name
        self.decided: ByTensor[bool] = ByTensor()  # integer tensors that depend on the data
        self.buffers: set[str] = set()  # names of tensors that are not parameters
        self.integers: dict[int, str] = {}  # id of an integer tensor of the model -> name
        self.sizes: dict[str, int] = {}  # name of an integer tensor -> number of entries
        self.sums: dict[str, list[int]] = {}  # first labels of both operands -> starts of blocks
        self.ties: dict[tuple[str, int, int, int], list[Tie]] = {}  # kind, first labels, length
        self.count_macs = True
        self.fills = False  # whether any tensor has UNWRITTEN labels

    def facets(self, tensor: Tensor) -> tuple[Tensor, ...]:
        info = self.info.get(tensor)
        return info.facets if info is not None else ()

    def set_info(self, tensor: Tensor, info: ChannelInfo) -> None:
        self.info[tensor] = info

    def label_filled_tensor(self, out: Tensor, axis: int = 1) -> None:
        """Label a filled tensor as UNWRITTEN: it takes the labels of what is written into it."""
        if out.dim() > 1 and out.shape[axis] > 1 and out.is_floating_point():
            ids = torch.full((out.shape[axis],), UNWRITTEN)
            self.set_info(out, ChannelInfo((on_axis(ids, axis, out.dim()),), linked=True))
            self.fills = True

    def tie(self, kind: str, a: Tensor, b: Tensor, where: Location) -> None:
        """Tie labels a[i] and b[i]. A label tied to a channel without producer is kept."""
        if a.shape != b.shape:
            a, b = torch.broadcast_tensors(a, b)
        a, b = a.reshape(-1), b.reshape(-1)
        if bool((torch.minimum(a, b) < 0).any()):
            unmatched = torch.cat(
                [a[(a >= 0) & (b == NO_PRODUCER)], b[(b >= 0) & (a == NO_PRODUCER)]]
            )
            self.keep(unmatched, where, "combined with channels that no layer produces")
            both = (a >= 0) & (b >= 0)
            a, b = a[both], b[both]
        differ = a != b
        if not bool(differ.any()):
            return
        if not bool(differ.all()):  # usually all differ, and nothing is copied
            a, b = a[differ], b[differ]
        self._note(Tie(kind, a, b, where))

    def _note(self, tie: Tie) -> None:
        """Record a tie, unless an earlier pass recorded it."""
        key = (tie.kind, int(tie.a[0]), int(tie.b[0]), tie.a.numel())
        same = self.ties.setdefault(key, [])
        if not any(torch.equal(t.a, tie.a) and torch.equal(t.b, tie.b) for t in same):
            same.append(tie)
            self.log.ties.append(tie)

    def tie_along(self, label: Tensor, axis: int, where: Location) -> Tensor:
        """Tie all labels along one axis to the first, and return the first."""
        first = label.narrow(axis, 0, 1)
        self.tie("same", first, label, where)
        return first

    def tied_along(self, label: Tensor, axis: int) -> bool:
        """Have all labels along one axis been tied to the first, directly or through others?"""
        classes = self.classes_of(label.clamp(min=0))
        return bool(((classes == classes.narrow(axis, 0, 1)) & (label >= 0)).all())

    def classes_of(self, label: Tensor) -> Tensor:
        """The class of each label, by the ties so far."""
        self._components.update(self.log.total, self.log.ties)
        return self._components.of(label)

    def keep(self, label: Tensor, where: Location, reason: str) -> None:
        label = label.reshape(-1)
        label = label[label >= 0]
        if label.numel():
            self.log.keep_reasons.append(KeepReason(label, where, reason))

    def keep_mixed(
        self, label: Tensor, old: Sequence[int], new: Sequence[int], where: Location
    ) -> None:
        """Keep channels that a view from `old` to `new` spreads over positions."""
        if mixes(label, old, new):
            self.keep(label, where, "a view mixes it with positions")

    def role(self, role: str, label: Tensor) -> None:
        label = label.reshape(-1)
        known = label >= 0
        self.log.roles.setdefault(role, []).append(label if bool(known.all()) else label[known])

    def sum_of(self, a: Tensor, b: Tensor, where: Location) -> Tensor:
        """New labels for the sum of two producers, so that criteria find the scales of both."""
        a, b = torch.broadcast_tensors(a, b)
        key = (a.reshape(-1)[:2].tolist(), b.reshape(-1)[:2].tolist(), a.numel())
        for start in self.sums.setdefault(str(key), []):  # an earlier pass recorded this sum
            old_a, old_b = self.log.sums[start]
            if torch.equal(old_a, a.reshape(-1)) and torch.equal(old_b, b.reshape(-1)):
                return self._either(torch.arange(start, start + a.numel()).view(a.shape), a, b)
        block = self.log.new_block("", 0, a.numel())
        self.sums[str(key)].append(block.start)
        fresh = torch.arange(block.start, block.start + block.size).view(a.shape)
        fresh = self._either(fresh, a, b)
        self.log.sums[block.start] = (a.reshape(-1).clone(), b.reshape(-1).clone())
        self.tie("same", fresh, a, where)
        return fresh

    @staticmethod
    def _either(fresh: Tensor, a: Tensor, b: Tensor) -> Tensor:
        """Where only one operand has a label, the sum has that label."""
        return torch.where((a >= 0) & (b >= 0), fresh, torch.maximum(a, b))

    def note_shift(self, weight: Tensor | None, shift: Tensor | None) -> None:
        """Record which tensor is the bias (or β) of a weight (or γ)."""
        name = self.names.get(weight) if weight is not None else None
        moved = self.names.get(shift) if shift is not None else ""
        if name is not None and moved is not None:
            self.log.shifts[name] = moved

    def note_norm(self, use: NormUse) -> None:
        """Record a norm over channels, unless an earlier pass recorded it."""
        uses = [old for old in self.log.norms if old.module == use.module]
        if not any(torch.equal(old.labels, use.labels) for old in uses):
            self.log.norms.append(use)
            for old in uses:  # the masked model could not tell them apart
                where = Location("norm", use.module)
                for labels in (old.labels, use.labels):
                    self.keep(labels, where, "its norm is used on several tensors")

    def index_entries(self, name: str, source: Tensor, where: Location) -> Tensor:
        """The labels of an integer tensor of the model whose values index `source`."""
        uses = {use.tensor: use for use in self.log.indices}
        if name not in uses:
            size = self.sizes[name]
            self.log.indices.append(IndexTensor(name, source.clone()))
            self.log.new_block(name, 0, size)
        elif not torch.equal(uses[name].source, source):
            self.keep(source, where, "it is chosen by an index tensor that is used on two layers")
        block = next(b for b in self.log.blocks if b.tensor == name)
        return torch.arange(block.start, block.start + block.size)
