"""The channel graph: groups of channels that can be removed, and the channels that are kept.

`dafp.tracing` builds it. `label_index.py` holds the label of every channel in every tensor axis;
`slicing.py` turns kept labels into slices of tensors; `group.py` and `plan.py` hold the values that
users see.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..network.cost import Cost
from ..network.decisions import DecisionPath
from ..network.fingerprint import fingerprint
from .group import Group, Kept, Slot, some, tensors_of_slots
from .label_index import NORM_TENSORS, LabelIndex, narrowed_norms
from .plan import PruningPlan
from .printing import at_most, html_table

__all__ = ["ChannelGraph", "Group", "Kept", "Slot", "check_same_model"]


@dataclass(frozen=True)
class ChannelGraph:
    """The result of `dafp.trace`: groups of channels that can be removed, and what is kept.

    Attributes:
        groups: Every `Group`, in the order of the model's layers. `graph[name]` returns one.
        kept: Channels that cannot be removed, each with its reason (`Kept`).
        notes: Remarks of the trace, for example that the model does not run in train mode.
        filters: Number of channels in all filter groups: filters that are removed together count
            once.
        prunable_filters: Number of filters that can be pruned, each counted.
        all_filters: Number of all filters of the network, each counted.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
        >>> graph = dafp.trace(model, torch.zeros(1, 3, 8, 8))
        >>> graph
        ChannelGraph of 1 group: 4 of 6 filters can be pruned, 2 are kept
          0: 4 channels
        >>> graph["0"].consumers
        (Slot(param='2.weight', dim=1, index=(0, 1, 2, 3)),)
    """

    groups: tuple[Group, ...]
    kept: tuple[Kept, ...]
    label_index: LabelIndex = field(repr=False)
    fingerprint: str  # of the model that was traced
    example: Any = field(repr=False, default=None)  # the input that prune verifies its result with
    notes: tuple[str, ...] = ()
    path: DecisionPath | None = field(repr=False, default=None)  # what it decides on the example

    def __getitem__(self, name: str) -> Group:
        for group in self.groups:
            if group.name == name:
                return group
        raise PlanError(f"no group {name!r}; groups are {', '.join(g.name for g in self.groups)}")

    @property
    def filters(self) -> int:
        """The channels of all filter groups: filters that are removed together count once.

        Targets and removed shares of filters are relative to this number. Selection groups do not
        count, because they remove no filter.

        Examples:
            A consumer with two groups ties the filters 0 and 4, 1 and 5, 2 and 6, 3 and 7:

            >>> model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.Conv2d(8, 2, 1, groups=2))
            >>> graph = dafp.trace(model, torch.zeros(1, 3, 8, 8))
            >>> graph.filters, graph.prunable_filters, graph.all_filters
            (4, 8, 10)
        """
        return sum(g.size for g in self.groups if g.kind == "filter")

    @property
    def all_filters(self) -> int:
        """All filters of the network, each counted: `prunable_filters` and those that are kept."""
        return self.prunable_filters + sum(k.size for k in self.kept if k.kind == "filter")

    @property
    def prunable_filters(self) -> int:
        """The filters that can be pruned, each counted: output channels of the weights.

        Two layers of 16 filters whose outputs are added (`residual="couple"`) count as 32 here, and
        as 16 in `filters`.
        """
        groups = [g for g in self.groups if g.kind == "filter"]
        return sum(len(slot.index) for group in groups for slot in group.producers)

    def __repr__(self) -> str:
        kept = self.all_filters - self.prunable_filters
        lines = [
            f"ChannelGraph of {len(self.groups)} group{'s' * (len(self.groups) != 1)}: "
            f"{self.prunable_filters} of {self.all_filters} filters can be pruned, {kept} are kept"
        ]
        for group in self.groups:
            selection = " (selection)" if group.kind == "selection" else ""
            lines.append(f"  {group.name}: {group.size} channels{selection}")
        return at_most(lines)

    def _repr_html_(self) -> str:
        rows: list[tuple[object, ...]] = []
        for g in self.groups:
            slots = (some(tensors_of_slots(s), 3) for s in (g.producers, g.scales, g.consumers))
            rows.append((g.name, g.kind, g.size, *slots))
        rows += [(k.name, f"kept: {k.reason}", k.size, "", "", "") for k in self.kept]
        header = ("group", "kind", "channels", "producers", "scales", "consumers")
        return html_table(repr(self).partition("\n")[0], header, rows)

    def resolve(self, plan: PruningPlan) -> PruningPlan:
        """Complete a plan. `dafp.prune` and `dafp.mask` do this to every plan.

        The completed plan names every group, gives equal widths to parts that the network splits
        evenly (channels are added back), and predicts the cost of the pruned model.

        Args:
            plan: A plan for this graph; groups that it does not name are kept whole.

        Returns:
            A new plan. A plan that was completed before keeps the same channels.

        Examples:
            >>> model = nn.Sequential(nn.Conv2d(3, 8, 1), nn.ReLU(), nn.Conv2d(8, 4, 1),
            ...                       nn.ReLU(), nn.Conv2d(4, 2, 1))
            >>> graph = dafp.trace(model, torch.zeros(1, 3, 8, 8))
            >>> print(graph.resolve(dafp.PruningPlan({"0": (1, 5)})))
            0: 8 → 2
            2: 4 → 4
            parameters 78 → 30
            multiply-adds 4,096 → 1,408
        """
        flags = self.balanced(self.flags(plan), plan.spare)
        keep = {
            g.name: tuple(flags[i].nonzero().flatten().tolist()) for i, g in enumerate(self.groups)
        }
        sizes = {g.name: g.size for g in self.groups}
        return PruningPlan(keep, sizes, plan.spare, self.whole, self.predict(flags))

    def balanced(
        self, flags: list[Tensor], spare: Mapping[str, tuple[int, ...]] | None = None
    ) -> list[Tensor]:
        """Add channels back until parts that the network splits evenly have equal widths.

        Args:
            flags: One boolean vector per group, as `flags` returns them; not changed.
            spare: For each group name, its removed channels, most important first.
        """
        flags = [flag.clone() for flag in flags]
        while self._balance(flags, spare or {}):
            pass
        return flags

    def flags(self, plan: PruningPlan) -> list[Tensor]:
        """One boolean vector per group, in the order of `groups`: which channels the plan keeps."""
        if not isinstance(plan, PruningPlan):
            raise PlanError(
                f"the plan is a {type(plan).__name__}; give a PruningPlan: what a rule of "
                "dafp.selection returns, or PruningPlan({group: kept channels})"
            )
        unknown = sorted(set(plan.keep) - {g.name for g in self.groups})
        if unknown:
            raise PlanError(
                f"plan names {unknown[0]!r}, which is not a group of this graph; was it made for "
                f"another model? Groups here: {some([g.name for g in self.groups])}"
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
                flag[torch.tensor(kept, dtype=torch.long)] = True
            flags.append(flag)
        return flags

    @cached_property
    def whole(self) -> Cost:
        """The cost of the unpruned model."""
        return self.predict([torch.ones(g.size, dtype=torch.bool) for g in self.groups])

    def predict(self, flags: list[Tensor]) -> Cost:
        """Predict the cost of the pruned model: equal to what `dafp.cost` counts on it."""
        label_index = self.label_index
        kept = label_index.kept(flags)
        sizes = self.sizes(kept)
        params = sum(math.prod(size) for size in sizes.values())
        labels, ends = label_index.mac_axes
        stays = torch.cat([kept.long(), torch.ones(1, dtype=torch.long)])[labels]
        left = iter(torch.cat([stays.new_zeros(1), stays.cumsum(0)])[ends].diff().tolist())
        macs = sum(t.constant * math.prod(next(left) for _ in t.axes) for t in label_index.macs)
        return Cost(params, macs // label_index.batch)

    def sizes(self, kept: Tensor) -> dict[str, list[int]]:
        """The shape of every parameter after slicing. `kept`: label -> is it kept."""
        label_index = self.label_index
        sizes = {name: list(label_index.shapes[name]) for name in label_index.parameters}
        for block, left in zip(label_index.blocks, label_index.widths(kept), strict=True):
            if block.tensor in sizes:
                sizes[block.tensor][block.dim] = left
        for norm, positions in narrowed_norms(label_index, kept).items():
            for name in (f"{norm}.{tensor}" for tensor in NORM_TENSORS):
                if name in sizes:
                    sizes[name][0] = positions.numel()
        return sizes

    def explain(self, name: str) -> str:
        """Explain which tensors a group consists of and where they are tied, or why it is kept.

        Args:
            name: The name of a group, or of an entry of `kept`.

        Returns:
            Text of one or more lines.

        Examples:
            >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
            >>> graph = dafp.trace(model, torch.zeros(1, 3, 8, 8))
            >>> print(graph.explain("0"))
            0: filter group of 4 channels
              producers: 0.weight axis 0
              scales: 1.weight axis 0
              consumers: 2.weight axis 1
              followers: 0.bias axis 0, 1.bias axis 0, 1.running_mean axis 0, 1.running_var axis 0
              ...
            >>> print(graph.explain("2"))
            2 (2 channels) is kept: an output of the model (output in the model)
        """
        for kept in self.kept:
            if kept.name == name:
                where = f"{kept.op} in {kept.module or 'the model'}"
                return f"{name} ({kept.size} channels) is kept: {kept.reason} ({where})"
        position = [g.name for g in self.groups].index(self[name].name)
        group, label_index = self.groups[position], self.label_index
        lines = [f"{name}: {group.kind} group of {group.size} channels"]
        roles = {
            "producers": group.producers,
            "scales": group.scales,
            "consumers": group.consumers,
            "followers": group.followers,
        }
        for title, slots in roles.items():
            if slots:
                lines.append(f"  {title}: " + ", ".join(f"{s.param} axis {s.dim}" for s in slots))
        lines += label_index.norms_of(position)
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
        """One round over all even splits. True if a channel was added back."""
        changed = False
        kept = self.label_index.kept(flags)
        for even_split in self.label_index.even_splits:
            counts = [int(kept[part].sum()) for part in even_split.parts]
            for part, count in zip(even_split.parts, counts, strict=True):
                if count < max(counts):
                    self._add_back(flags, part[~kept[part]], max(counts) - count, spare)
                    kept, changed = self.label_index.kept(flags), True
        return changed

    def _add_back(
        self, flags: list[Tensor], removed: Tensor, need: int, spare: Mapping[str, tuple[int, ...]]
    ) -> None:
        """Add back `need` of the removed labels, the most important channels first."""
        groups, channels = self.label_index.group_of[removed], self.label_index.channel_of[removed]
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
