"""The trace log: what rules record about labels while a network runs.

A label is an integer for one position of one tensor axis. The rules in tracing/rules record ties,
consumers and reasons to keep labels; tracing/groups.py turns them into groups.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from ..network.channel_norms import ChannelNorm


@dataclass(frozen=True)
class LabelBlock:
    """Consecutive labels: those of one axis of one tensor of the model, or of a sum."""

    tensor: str  # dotted name; "" for the sum of two producers
    dim: int
    start: int
    size: int


@dataclass(frozen=True)
class Location:
    """An operator call: the name of the operator, and the module whose forward called it."""

    op: str
    module: str


@dataclass(frozen=True)
class Tie:
    """Labels a[i] and b[i] belong to the same channel.

    kind: "same", "add" (they are added), "norm" (b is the scale of a norm with input a) or
    "consume" (b is the input of a weight that consumes a).
    """

    kind: str
    a: Tensor
    b: Tensor
    where: Location


@dataclass(frozen=True)
class KeepReason:
    """Labels that must be kept, and the reason."""

    labels: Tensor
    where: Location
    reason: str


@dataclass(frozen=True)
class ElementwiseStep:
    """One elementwise function between a scale and its consumer."""

    function: Any
    args: tuple[Any, ...]  # a tensor of the model is replaced by its TensorName
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class TensorName:
    """A tensor of the model among the arguments of a step."""

    name: str


@dataclass(frozen=True)
class Consumer:
    """A weight that consumes channels: channel source[i] is multiplied by its entries target[i]."""

    source: Tensor
    target: Tensor
    output: Tensor | None  # labels of the channels that the weight produces
    weight: str
    groups: int
    steps: tuple[ElementwiseStep, ...] | None  # since the last scale; None: not all elementwise
    where: Location


@dataclass(frozen=True)
class MacTerm:
    """constant · Π (channels left on each axis) multiply-adds, for the example's whole batch."""

    constant: int
    axes: tuple[Tensor, ...]


@dataclass(frozen=True)
class NormUse:
    """A module that normalises over channels, and the channels of its input."""

    module: str
    labels: Tensor
    norm: ChannelNorm


@dataclass(frozen=True)
class IndexTensor:
    """An integer tensor of the model whose values index the channels `source`."""

    tensor: str
    source: Tensor


@dataclass(frozen=True)
class RecordedCall:
    """One operator call of a pass, to be compared with a run at other widths."""

    op: Any
    where: Location
    ints: tuple[int, ...]  # its integer arguments
    numbers: tuple[float, ...]  # its integer and floating-point arguments
    inputs: tuple[Tensor, ...]
    outputs: tuple[Any, ...]  # ChannelInfo of each output, None without labels
    shapes: tuple[tuple[int, ...], ...]
    kind: type  # of the output: a tensor, or a list or tuple of tensors


def block_at(blocks: Sequence[LabelBlock], label: int) -> LabelBlock:
    """The block that contains a label."""
    return blocks[bisect_right(blocks, label, key=lambda block: block.start) - 1]


@dataclass
class TraceLog:
    """What all passes recorded. `blocks` say which label belongs to which tensor."""

    blocks: list[LabelBlock] = field(default_factory=list)
    total: int = 0
    ties: list[Tie] = field(default_factory=list)
    keep_reasons: list[KeepReason] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    macs: list[MacTerm] = field(default_factory=list)
    norms: list[NormUse] = field(default_factory=list)
    indices: list[IndexTensor] = field(default_factory=list)
    sums: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)  # block start -> operands
    shifts: dict[str, str] = field(default_factory=dict)  # scale or weight -> its bias, "" if none
    roles: dict[str, list[Tensor]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def block_at(self, label: int) -> LabelBlock:
        return block_at(self.blocks, label)

    def new_block(self, tensor: str, dim: int, size: int) -> LabelBlock:
        block = LabelBlock(tensor, dim, self.total, size)
        self.blocks.append(block)
        self.total += size
        return block
