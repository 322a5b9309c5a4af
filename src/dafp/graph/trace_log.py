"""What one or more passes over a network leave behind: ties, reads, keeps, costs."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class LabelBlock:
    """The labels of one axis of one tensor of the model (or, without a name, of a sum)."""

    tensor: str  # dotted name; "" for the sum of two producers
    dim: int
    start: int
    size: int


@dataclass(frozen=True)
class Location:
    """The operator and the module in whose forward it ran."""

    op: str
    module: str


@dataclass(frozen=True)
class Tie:
    """Channels a[i] and b[i] met. kind: same, add, norm (BN reads), read (weights read)."""

    kind: str
    a: Tensor
    b: Tensor
    where: Location


@dataclass(frozen=True)
class KeepReason:
    """Channels that cannot be removed, and why."""

    labels: Tensor
    where: Location
    reason: str


@dataclass(frozen=True)
class ElementwiseStep:
    """One elementwise function on the way from a scale to its reader."""

    function: Any
    args: tuple[Any, ...]  # a tensor of the model stands here as its dotted name, in a TensorName
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class TensorName:
    """Stands for a tensor of the model among the arguments of a step."""

    name: str


@dataclass(frozen=True)
class Consumer:
    """Weights that read channels: source[i] is multiplied by the slice at target[i]."""

    source: Tensor
    target: Tensor
    output: Tensor | None  # labels that the reader makes
    weight: str
    groups: int
    steps: tuple[ElementwiseStep, ...] | None  # None: not elementwise since the last scale
    where: Location


@dataclass(frozen=True)
class MacTerm:
    """constant · Π (channels left on each axis) multiply-adds, for the example's whole batch."""

    constant: int
    axes: tuple[Tensor, ...]


@dataclass(frozen=True)
class IndexTensor:
    """An integer tensor whose entries point into the channels `source`."""

    tensor: str
    source: Tensor


@dataclass(frozen=True)
class RecordedCall:
    """One operator call: what a narrower copy of the network has to reproduce."""

    op: Any
    where: Location
    ints: tuple[int, ...]  # the whole numbers it was called with
    numbers: tuple[float, ...]  # these and the others
    inputs: tuple[Tensor, ...]
    outputs: tuple[Any, ...]  # what is known of each output tensor, None: nothing
    shapes: tuple[tuple[int, ...], ...]
    kind: type  # of the output: a tensor, a list or a tuple of them


def block_at(blocks: Sequence[LabelBlock], label: int) -> LabelBlock:
    """The block that a label belongs to; blocks follow one another."""
    return blocks[bisect_right(blocks, label, key=lambda block: block.start) - 1]


@dataclass
class TraceLog:
    """All that the passes found; blocks say which label belongs to which tensor."""

    blocks: list[LabelBlock] = field(default_factory=list)
    total: int = 0
    ties: list[Tie] = field(default_factory=list)
    keep_reasons: list[KeepReason] = field(default_factory=list)
    consumers: list[Consumer] = field(default_factory=list)
    macs: list[MacTerm] = field(default_factory=list)
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
