"""The label index: for every label, its tensor axis, its group and its channel.

A label is an integer for one position of one tensor axis. `kept_positions` gives the positions of
each axis that remain; slicing.py slices tensors by them.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .trace_log import Consumer, IndexTensor, LabelBlock, MacTerm, NormUse, Tie, block_at


@dataclass(frozen=True)
class WidthAttribute:
    """An attribute of a module that holds a number of channels; pruning updates it."""

    module: str
    attribute: str
    item: int | None  # position, when the attribute is a list or tuple
    labels: Tensor


@dataclass(frozen=True)
class EvenSplit:
    """Parts that the network splits evenly: all must keep the same number of channels."""

    parts: tuple[Tensor, ...]
    op: str
    module: str


@dataclass(frozen=True)
class InputSelection:
    """A consumer of a residual stream that may select some of its channels."""

    consumer: str  # module that consumes
    norm: str  # BN module before it
    target: Tensor  # labels of the input entries of its weight
    source: Tensor  # labels of the BN's channels that they consume
    exclusive: bool  # only selections consume the output of this norm: it can be narrowed
    rearranged: bool = False  # its output goes through views or slices before it is consumed


@dataclass(frozen=True)
class LabelIndex:
    """All labels of a network: their tensors, groups, roles, and what depends on them."""

    blocks: tuple[LabelBlock, ...]
    shapes: dict[str, tuple[int, ...]]  # of all tensors of the model
    parameters: frozenset[str]
    group_of: Tensor  # label -> group, -1 if it is kept
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
    norms: tuple[NormUse, ...] = ()

    def labels(self, tensor: str, dim: int) -> Tensor | None:
        block = self._by_axis.get((tensor, dim))
        return None if block is None else torch.arange(block.start, block.start + block.size)

    def kept(self, flags: list[Tensor]) -> Tensor:
        """label -> whether (or how often) it is kept, from one vector per group."""
        flat = torch.cat([*flags, torch.ones(1, dtype=flags[0].dtype if flags else torch.bool)])
        return flat[self._places]

    @cached_property
    def _places(self) -> Tensor:
        """label -> position of its flag in the concatenated vectors, the last for kept labels."""
        inside = self.group_of >= 0
        sizes = torch.zeros(int(self.group_of.max()) + 2 if inside.any() else 1, dtype=torch.long)
        sizes.scatter_reduce_(0, self.group_of[inside] + 1, self.channel_of[inside] + 1, "amax")
        starts = sizes.cumsum(0)
        own = starts[self.group_of.clamp(min=0)] + self.channel_of
        return torch.where(inside, own, starts[-1])

    @cached_property
    def mac_axes(self) -> tuple[Tensor, Tensor]:
        """The labels of all axes that the cost depends on, concatenated, and where each axis ends.

        Channels that no layer produces are kept: they have the index -1.
        """
        axes = [axis for term in self.macs for axis in term.axes]
        ends = torch.tensor([0, *(axis.numel() for axis in axes)]).cumsum(0)
        return torch.cat([torch.empty(0, dtype=torch.long), *axes]).clamp(min=-1), ends

    def widths(self, kept: Tensor) -> list[int]:
        """How many labels of each block are kept."""
        ends = torch.tensor([0, *(block.start + block.size for block in self.blocks)])
        return torch.cat([ends.new_zeros(1), kept.long().cumsum(0)])[ends].diff().tolist()

    def kept_labels(self, kept: Tensor) -> tuple[Tensor, ...]:
        """The kept labels of each block, repeated as often as `kept` says."""
        every = torch.arange(kept.numel()).repeat_interleave(kept.long())
        parts: tuple[Tensor, ...] = every.split(self.widths(kept))
        return parts

    def block_at(self, label: int) -> LabelBlock:
        return block_at(self.blocks, label)

    def norms_of(self, group: int) -> list[str]:
        """A line for `explain` if norms take statistics over the channels of a group."""
        uses = [
            u for u in self.norms if bool((self.group_of[u.labels[u.labels >= 0]] == group).any())
        ]
        names = ", ".join(dict.fromkeys(use.module for use in uses))
        return [f"  statistics of {names} are taken over the channels that are left"] * bool(uses)

    @cached_property
    def norms_by_input(self) -> dict[tuple[int, int], str]:
        """(First label, width) of the input of a BN -> the name of its scale."""
        found = {}
        for tie in self.ties:
            block = self.block_at(int(tie.b[0]))
            whole = block.start == int(tie.b[0]) and block.size == tie.b.numel()
            if tie.kind == "norm" and whole and bool((tie.a.diff() == 1).all()):
                found[int(tie.a[0]), tie.a.numel()] = block.tensor
        return found

    @cached_property
    def _by_axis(self) -> dict[tuple[str, int], LabelBlock]:
        return {(b.tensor, b.dim): b for b in self.blocks if b.tensor}


def kept_positions(label_index: LabelIndex, kept: Tensor) -> dict[tuple[str, int], Tensor]:
    """(tensor, axis) -> positions that are kept, for every axis that changes.

    `kept` says how often each label is kept: 0 or 1 for a plan; a trial may repeat channels.
    """
    changed = label_index.widths(kept.long() != 1)
    found = {}
    for block, changes, labels in zip(
        label_index.blocks, changed, label_index.kept_labels(kept), strict=True
    ):
        if block.tensor and changes:
            found[block.tensor, block.dim] = labels - block.start
    for norm, positions in narrowed_norms(label_index, kept).items():
        for tensor in NORM_TENSORS:
            if label_index.labels(f"{norm}.{tensor}", 0) is not None:
                found[f"{norm}.{tensor}", 0] = positions
    return found


NORM_TENSORS = ("weight", "bias", "running_mean", "running_var")


def narrowed_norms(label_index: LabelIndex, kept: Tensor) -> dict[str, Tensor]:
    """BN module -> its kept channels, where all its consumers select the same ones."""
    wanted: dict[str, list[Tensor]] = {}
    whole = {s.norm for s in label_index.selections if not s.exclusive}
    for selection in label_index.selections:
        stays = selection.source[kept[selection.target].bool()].unique()
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
