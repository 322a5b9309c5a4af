"""What tracing found, in terms of labels: one integer per channel and tensor axis."""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .trace_log import Consumer, IndexTensor, LabelBlock, MacTerm, Tie, block_at


@dataclass(frozen=True)
class WidthAttribute:
    """A number in the model's own attributes that counts channels, and must follow them."""

    module: str
    attribute: str
    item: int | None  # position, when the attribute is a list or tuple
    labels: Tensor


@dataclass(frozen=True)
class EvenSplit:
    """Parts that the network splits evenly: each must keep as many channels as the others."""

    parts: tuple[Tensor, ...]
    op: str
    module: str


@dataclass(frozen=True)
class InputSelection:
    """A reader of a residual stream that can do with some of its channels."""

    consumer: str  # module that reads
    norm: str  # BN module in front of it
    target: Tensor  # labels of the reader's input entries
    source: Tensor  # labels of the BN's channels that they read
    exclusive: bool  # nothing but selections reads this BN


@dataclass(frozen=True)
class LabelIndex:
    """Every label of a network: where it stands, what it is tied to, what depends on it."""

    blocks: tuple[LabelBlock, ...]
    shapes: dict[str, tuple[int, ...]]  # of all tensors of the model
    parameters: frozenset[str]
    group_of: Tensor  # label -> group, -1: stays
    channel_of: Tensor  # label -> channel within its group
    consumers: tuple[Consumer, ...]
    sums: dict[int, tuple[Tensor, Tensor]]
    roles: dict[str, Tensor]  # role -> mask over labels
    macs: tuple[MacTerm, ...]
    batch: int
    shifts: dict[str, str]  # scale or weight -> its shift or bias, "" where it has none
    indices: tuple[IndexTensor, ...]
    width_attributes: tuple[WidthAttribute, ...] = ()
    even_splits: tuple[EvenSplit, ...] = ()
    selections: tuple[InputSelection, ...] = ()
    ties: tuple[Tie, ...] = ()

    def labels(self, tensor: str, dim: int) -> Tensor | None:
        block = self._by_axis.get((tensor, dim))
        return None if block is None else torch.arange(block.start, block.start + block.size)

    def kept(self, flags: list[Tensor]) -> Tensor:
        """label -> does it stay (or how often), from one vector per group."""
        flat = torch.cat([*flags, torch.ones(1, dtype=flags[0].dtype if flags else torch.bool)])
        return flat[self._places]

    @cached_property
    def _places(self) -> Tensor:
        """label -> where its flag is, one vector after the other; the last is for what stays."""
        inside = self.group_of >= 0
        sizes = torch.zeros(int(self.group_of.max()) + 2 if inside.any() else 1, dtype=torch.long)
        sizes.scatter_reduce_(0, self.group_of[inside] + 1, self.channel_of[inside] + 1, "amax")
        starts = sizes.cumsum(0)
        own = starts[self.group_of.clamp(min=0)] + self.channel_of
        return torch.where(inside, own, starts[-1])

    @cached_property
    def mac_axes(self) -> tuple[Tensor, Tensor]:
        """The labels of all axes that cost depends on, one axis after the other; where each ends.

        Channels that no layer makes stay: they point behind the last label.
        """
        axes = [axis for term in self.macs for axis in term.axes]
        ends = torch.tensor([0, *(axis.numel() for axis in axes)]).cumsum(0)
        return torch.cat([torch.empty(0, dtype=torch.long), *axes]).clamp(min=-1), ends

    def widths(self, alive: Tensor) -> list[int]:
        """How many labels of each block stay."""
        ends = torch.tensor([0, *(block.start + block.size for block in self.blocks)])
        return torch.cat([ends.new_zeros(1), alive.long().cumsum(0)])[ends].diff().tolist()

    def kept_labels(self, alive: Tensor) -> tuple[Tensor, ...]:
        """Block by block: its labels, as often as they stay."""
        every = torch.arange(alive.numel()).repeat_interleave(alive.long())
        parts: tuple[Tensor, ...] = every.split(self.widths(alive))
        return parts

    def block_at(self, label: int) -> LabelBlock:
        return block_at(self.blocks, label)

    @cached_property
    def _by_axis(self) -> dict[tuple[str, int], LabelBlock]:
        return {(b.tensor, b.dim): b for b in self.blocks if b.tensor}


def kept_positions(label_index: LabelIndex, alive: Tensor) -> dict[tuple[str, int], Tensor]:
    """(tensor, axis) -> positions that stay, for every axis that changes.

    `alive` says how often each label stays: a plan has 0 and 1, a trial may repeat channels.
    """
    changed = label_index.widths(alive.long() != 1)
    kept = {}
    for block, changes, labels in zip(
        label_index.blocks, changed, label_index.kept_labels(alive), strict=True
    ):
        if block.tensor and changes:
            kept[block.tensor, block.dim] = labels - block.start
    for norm, positions in narrowed_norms(label_index, alive).items():
        for tensor in NORM_TENSORS:
            if label_index.labels(f"{norm}.{tensor}", 0) is not None:
                kept[f"{norm}.{tensor}", 0] = positions
    return kept


NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")


def narrowed_norms(label_index: LabelIndex, alive: Tensor) -> dict[str, Tensor]:
    """BN module -> its channels that stay, where all its readers are selected alike."""
    wanted: dict[str, list[Tensor]] = {}
    whole = {s.norm for s in label_index.selections if not s.exclusive}
    for selection in label_index.selections:
        stays = selection.source[alive[selection.target].bool()].unique()
        wanted.setdefault(selection.norm, []).append(stays)
    narrow = {}
    for norm, choices in wanted.items():
        labels = label_index.labels(f"{norm}.weight", 0)
        alike = all(torch.equal(choices[0], other) for other in choices)
        if labels is None or not alike or norm in whole:
            continue
        if 0 < choices[0].numel() < labels.numel():
            narrow[norm] = choices[0] - labels[0]
    return narrow
