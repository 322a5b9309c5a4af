"""From labels to the values that users see: `Group`s with their slots and names, and `Kept`."""

import torch
from torch import Tensor

from ..graph.group import Group, Kept, Slot
from ..graph.trace_log import LabelBlock, TraceLog
from .reasons import Reasons


def block_of(log: TraceLog) -> Tensor:
    sizes = torch.tensor([b.size for b in log.blocks], dtype=torch.long)
    return torch.arange(len(log.blocks)).repeat_interleave(sizes)


def describe_groups(
    log: TraceLog,
    group_of: Tensor,
    channel_of: Tensor,
    roles: dict[str, Tensor],
    sizes: list[int],
) -> list[Group]:
    """Turn labels into slots: sort by group, tensor axis and channel, then split into runs."""
    members = (group_of >= 0).nonzero().flatten()
    if not members.numel():
        return []
    key = group_of[members].mul_(len(log.blocks)).add_(block_of(log)[members])
    order = (key * (int(channel_of.max()) + 1)).add_(channel_of[members]).argsort(stable=True)
    members, key = members[order], key[order]
    del order
    runs, lengths = key.unique_consecutive(return_counts=True)
    numbers = tuple(range(max(block.size for block in log.blocks)))  # slots share the int objects
    places = members - torch.tensor([block.start for block in log.blocks])[block_of(log)[members]]
    ends = lengths.cumsum(0)
    broken = torch.cat([members.new_zeros(1), (places.diff() != 1).long().cumsum(0)])
    in_order = (broken[ends - 1] == broken[ends - lengths]).tolist()  # of each run
    slots: list[dict[str, list[Slot]]] = [{} for _ in sizes]
    entries: list[list[tuple[LabelBlock, Tensor]]] = [[] for _ in sizes]
    has = _roles_of_runs(roles, members, lengths)
    for number, (run, part) in enumerate(
        zip(runs.tolist(), places.split(lengths.tolist()), strict=True)
    ):
        group, block = divmod(run, len(log.blocks))
        where = log.blocks[block]
        if not where.tensor:
            continue
        if in_order[number]:
            index = numbers[int(part[0]) : int(part[0]) + part.numel()]
        else:
            index = tuple(map(numbers.__getitem__, part.tolist()))
        slot = Slot(where.tensor, where.dim, index)
        kinds = [kind for kind, found in has.items() if found[number]]
        for kind in kinds or ["follower"]:
            slots[group].setdefault(kind, []).append(slot)
        if "producer" in kinds:
            entries[group].append((where, part))
    groups: list[Group] = []
    taken: dict[str, int] = {}
    for number, size in enumerate(sizes):
        name = _name(*entries[number][0])
        taken[name] = taken.get(name, 0) + 1
        if taken[name] > 1:
            name = f"{name}~{taken[name]}"
        groups.append(
            Group(name, size, "filter", *(tuple(slots[number].get(k, ())) for k in _SLOT_KINDS))
        )
    return groups


def _roles_of_runs(
    roles: dict[str, Tensor], members: Tensor, lengths: Tensor
) -> dict[str, list[bool]]:
    """role -> for every run of labels, whether any of them has this role."""
    ends = lengths.cumsum(0) - 1
    found = {}
    for role in ("producer", "scale", "consumer"):
        counted = roles[role][members].cumsum(0)[ends]
        found[role] = (counted.diff(prepend=counted.new_zeros(1)) > 0).tolist()
    return found


_SLOT_KINDS = ("producer", "scale", "consumer", "follower")


def _name(block: LabelBlock, positions: Tensor) -> str:
    module = block.tensor.rpartition(".")[0] or block.tensor
    if positions.numel() == block.size:
        return module
    return f"{module}[{_ranges(positions)}]"


def _ranges(positions: Tensor) -> str:
    """[3, 4, 5, 8] -> 3:6,8:9; more than three runs become one range, first to last position."""
    values = positions.sort().values
    jumps = (values.diff() != 1).nonzero().flatten().tolist()
    if len(jumps) > 2:
        return f"{int(values[0])}:{int(values[-1]) + 1}"
    starts, ends = [0, *[j + 1 for j in jumps]], [*jumps, values.numel() - 1]
    return ",".join(
        f"{int(values[s])}:{int(values[e]) + 1}" for s, e in zip(starts, ends, strict=True)
    )


def kept_channels(
    log: TraceLog,
    roots: Tensor,
    prunable: Tensor,
    roles: dict[str, Tensor],
    reasons: Reasons,
) -> list[Kept]:
    """The kept channels of every producer, one entry per reason."""
    lines: list[Kept] = []
    members = (roles["producer"] & ~prunable).nonzero().flatten()
    blocks, counts = block_of(log)[members].unique_consecutive(return_counts=True)
    for number, labels in zip(blocks.tolist(), members.split(counts.tolist()), strict=True):
        block = log.blocks[number]
        if not block.tensor:
            continue
        for (where, reason), found in reasons.by_reason(roots[labels]).items():
            name = _name(block, labels[found] - block.start)
            lines.append(Kept(name, found.numel(), where.op, where.module, reason))
    return lines
