"""The channel graph: what can be removed from a network, and what has to go with it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..network.cost import Cost
from ..network.fingerprint import fingerprint
from .label_index import NORM_TENSORS, LabelIndex, narrowed_norms
from .plan import PruningPlan


@dataclass(frozen=True)
class Slot:
    """Entries of one axis of one tensor that belong to the channels of a group.

    `index` runs through the channels in order; a channel with k entries has k neighbours there, so
    `torch.tensor(index).view(group.size, -1)[c]` are the entries of channel c.
    """

    param: str
    dim: int
    index: tuple[int, ...]


@dataclass(frozen=True)
class Group:
    """Channels that are judged together, each of which can go by itself."""

    name: str  # the first producer's dotted module name, with [a:b] when only a part of it
    size: int
    kind: str  # "filter", or "selection": inputs of one reader of a residual stream
    producers: tuple[Slot, ...]  # filters that make the channels
    scales: tuple[Slot, ...]  # BN scales they pass
    consumers: tuple[Slot, ...]  # weights that read them
    followers: tuple[Slot, ...] = ()  # biases, shifts, statistics, slopes: cut along


class Kept(NamedTuple):
    """Channels that stay, and why."""

    name: str
    size: int
    op: str
    module: str
    reason: str


@dataclass(frozen=True)
class ChannelGraph:
    """Groups of channels that can be removed, and what is kept, with the reason."""

    groups: tuple[Group, ...]
    kept: tuple[Kept, ...]
    label_index: LabelIndex = field(repr=False)
    fingerprint: str  # of the model that was traced
    example: Any = field(repr=False, default=None)  # what prune verifies itself on
    notes: tuple[str, ...] = ()

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise PlanError(f"no group {name!r}; groups are {', '.join(g.name for g in self.groups)}")

    @property
    def filters(self) -> int:
        """Filters that can be pruned: the denominator of every share of filters."""
        return sum(g.size for g in self.groups if g.kind == "filter")

    @property
    def all_filters(self) -> int:
        """All filters of the network, prunable or not."""
        return self.prunable_filters + sum(k.size for k in self.kept)

    @property
    def prunable_filters(self) -> int:
        """Filters behind `filters`: channels that are tied count once there, each filter here."""
        groups = [g for g in self.groups if g.kind == "filter"]
        return sum(len(slot.index) for group in groups for slot in group.producers)

    def resolve(self, plan: PruningPlan) -> PruningPlan:
        """Make a plan legal: every group named, evenly split parts balanced, cost predicted."""
        flags = self.balanced(self.flags(plan), plan.spare)
        keep = {
            g.name: tuple(flags[i].nonzero().flatten().tolist()) for i, g in enumerate(self.groups)
        }
        sizes = {g.name: g.size for g in self.groups}
        return PruningPlan(keep, sizes, plan.spare, self.whole, self.predict(flags))

    def balanced(
        self, flags: list[Tensor], spare: Mapping[str, tuple[int, ...]] | None = None
    ) -> list[Tensor]:
        """Bring channels back until parts that the network splits evenly are even."""
        flags = [flag.clone() for flag in flags]
        while self._balance(flags, spare or {}):
            pass
        return flags

    def flags(self, plan: PruningPlan) -> list[Tensor]:
        """One boolean vector per group: which channels the plan keeps."""
        if not isinstance(plan, PruningPlan):
            raise PlanError(
                f"the plan is a {type(plan).__name__}; give a PruningPlan: what a rule of "
                "dafp.selection returns, or PruningPlan({group: kept channels})"
            )
        unknown = sorted(set(plan.keep) - {g.name for g in self.groups})
        if unknown:
            raise PlanError(
                f"plan names {unknown[0]!r}, which is no group of this graph; was it made for "
                f"another model? Groups here: {_some([g.name for g in self.groups])}"
            )
        flags = []
        for group in self.groups:
            size = plan.sizes.get(group.name, group.size)
            kept = plan.keep.get(group.name)
            if size != group.size or (kept and kept[-1] >= group.size):
                raise PlanError(
                    f"plan keeps channel {kept[-1] if kept else '–'} of {group.name!r}, of {size}, "
                    f"which has {group.size} channels here; was it made for another width of "
                    "this model?"
                )
            flag = torch.ones(group.size, dtype=torch.bool)
            if kept is not None:
                flag.zero_()
                flag[list(kept)] = True
            flags.append(flag)
        return flags

    @cached_property
    def whole(self) -> Cost:
        """The cost of the model as it is."""
        return self.predict([torch.ones(g.size, dtype=torch.bool) for g in self.groups])

    def predict(self, flags: list[Tensor]) -> Cost:
        """The cost of the model that these flags leave: equal to what `cost` counts on it."""
        label_index = self.label_index
        alive = label_index.kept(flags)
        sizes = self.sizes(alive)
        params = sum(math.prod(size) for size in sizes.values())
        labels, ends = label_index.mac_axes
        stays = torch.cat([alive.long(), torch.ones(1, dtype=torch.long)])[labels]
        left = iter(torch.cat([stays.new_zeros(1), stays.cumsum(0)])[ends].diff().tolist())
        macs = sum(t.constant * math.prod(next(left) for _ in t.axes) for t in label_index.macs)
        return Cost(params, macs // label_index.batch)

    def sizes(self, alive: Tensor) -> dict[str, list[int]]:
        """Every parameter's shape once only the living labels are left."""
        label_index = self.label_index
        sizes = {name: list(label_index.shapes[name]) for name in label_index.parameters}
        for block, left in zip(label_index.blocks, label_index.widths(alive), strict=True):
            if block.tensor in sizes:
                sizes[block.tensor][block.dim] = left
        for norm, positions in narrowed_norms(label_index, alive).items():
            for name in (f"{norm}.{tensor}" for tensor in NORM_TENSORS):
                if name in sizes:
                    sizes[name][0] = positions.numel()
        return sizes

    def explain(self, name: str) -> str:
        """Say with whom a group (or something kept) is tied, and at which operator."""
        for kept in self.kept:
            if kept.name == name:
                where = f"{kept.op} in {kept.module or 'the model'}"
                return f"{name} ({kept.size} channels) is kept: {kept.reason} ({where})"
        position = [g.name for g in self.groups].index(self[name].name)
        group, label_index = self.groups[position], self.label_index
        lines = [f"{name}: {group.kind} group of {group.size} channels"]
        roles = {
            "made by": group.producers,
            "scaled by": group.scales,
            "read by": group.consumers,
            "cut along": group.followers,
        }
        for title, slots in roles.items():
            if slots:
                lines.append(f"  {title}: " + ", ".join(f"{s.param} axis {s.dim}" for s in slots))
        seen = set()
        for tie in label_index.ties:
            mine = label_index.group_of[tie.a] == position
            if not bool(mine.any()):
                continue
            ends = sorted({self._tensor_at(int(t[mine][0])) for t in (tie.a, tie.b)})
            line = (
                f"  tied: {' ~ '.join(ends)} at {tie.where.op} in {tie.where.module or 'the model'}"
            )
            if len(ends) == 2 and line not in seen:
                seen.add(line)
                lines.append(line)
        return "\n".join(lines)

    def _tensor_at(self, label: int) -> str:
        block = self.label_index.block_at(label)
        return f"{block.tensor} axis {block.dim}" if block.tensor else "a sum"

    def _balance(self, flags: list[Tensor], spare: Mapping[str, tuple[int, ...]]) -> bool:
        """One round over all parts that must be even. True if anything changed."""
        changed = False
        alive = self.label_index.kept(flags)
        for even_split in self.label_index.even_splits:
            counts = [int(alive[part].sum()) for part in even_split.parts]
            for part, count in zip(even_split.parts, counts, strict=True):
                if count < max(counts):
                    self._bring_back(flags, part[~alive[part]], max(counts) - count, spare)
                    alive, changed = self.label_index.kept(flags), True
        return changed

    def _bring_back(
        self, flags: list[Tensor], dead: Tensor, need: int, spare: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Revive `need` of these labels, the most important channels first."""
        groups, channels = self.label_index.group_of[dead], self.label_index.channel_of[dead]
        order = []
        for group, channel in dict.fromkeys(zip(groups.tolist(), channels.tolist(), strict=True)):
            ranking = spare.get(self.groups[group].name, ())
            rank = ranking.index(channel) if channel in ranking else channel
            order.append((rank / self.groups[group].size, group, channel))
        for _, group, channel in sorted(order):
            if need <= 0:
                return
            flags[group][channel] = True
            need -= int(((groups == group) & (channels == channel)).sum())


def _some(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")


def check_same_model(model: nn.Module, graph: ChannelGraph) -> None:
    """Raise unless the graph was traced from this architecture."""
    if not isinstance(model, nn.Module) or not isinstance(graph, ChannelGraph):
        raise PlanError(
            f"expected a model and its graph, not a {type(model).__name__} and a "
            f"{type(graph).__name__}; the graph is what dafp.trace(model, example) returns"
        )
    if fingerprint(model) != graph.fingerprint:
        raise PlanError(
            "the graph was traced from another model: names or shapes of tensors differ. "
            "Trace this model, then make the plan from its own graph"
        )
