"""Norms of scales and weights per channel, and which scale belongs to a channel."""

import torch
from torch import Tensor

from ..graph.label_index import LabelIndex


def strengths(tensors: dict[str, Tensor], label_index: LabelIndex) -> Tensor:
    """Label -> |γ|, or the norm of the filter; for a sum the root of the sum of both squares."""
    strength = torch.ones(label_index.group_of.numel(), dtype=torch.float32)
    for block in label_index.blocks:
        labels = slice(block.start, block.start + block.size)
        if not block.tensor:
            a, b = (strength[s.clamp(min=0)] * (s >= 0) for s in label_index.sums[block.start])
            strength[labels] = torch.hypot(a, b)
        elif label_index.roles["scale"][block.start] or bool(
            label_index.roles["producer"][labels].any()
        ):
            strength[labels] = norm_along(tensors[block.tensor], block.dim, "frobenius")
    return strength


def norm_along(weight: Tensor, dim: int, norm: str, groups: int = 1) -> Tensor:
    """The norm of every slice along one axis; with groups, of every (group, slice)."""
    weight = weight.detach().float().cpu()
    if groups > 1:
        weight = weight.view(groups, weight.shape[0] // groups, *weight.shape[1:])
        weight, dim = weight.transpose(1, 2).flatten(0, 1), 0
    others = [d for d in range(weight.dim()) if d != dim]
    if not others:
        return weight.abs()
    if norm == "mean_abs":
        return weight.abs().mean(others)
    length: Tensor = torch.linalg.vector_norm(weight, dim=others)
    return length


def scale_pairs(label_index: LabelIndex, *, leaves: bool) -> tuple[Tensor, Tensor]:
    """Pairs (label of a channel, label of the scale before a consumer), each pair once.

    `leaves`: the label of a sum is replaced by those of its operands.
    """
    target = cat([r.target for r in label_index.consumers])
    source = cat([r.source for r in label_index.consumers])
    parts = [torch.stack([target, source])]
    while leaves and parts[-1].numel():
        target, source = parts[-1]
        is_sum = torch.zeros_like(source, dtype=torch.bool)
        below = []
        for start, operands in label_index.sums.items():
            here = (source >= start) & (source < start + operands[0].numel())
            is_sum |= here
            for side in operands:
                below.append(torch.stack([target[here], side[source[here] - start]]))
        parts[-1] = parts[-1][:, ~is_sum]
        parts.append(
            torch.cat(below, 1).unique(dim=1) if below else torch.empty(2, 0, dtype=torch.long)
        )
    pairs = torch.cat(parts, 1)
    pairs = pairs[:, pairs.min(0).values >= 0]
    # consumers of one channel that share a scale count once
    channel = (
        label_index.group_of[pairs[0]] * (label_index.group_of.numel() + 1)
        + label_index.channel_of[pairs[0]]
    )
    _, first = torch.stack([channel, pairs[1]]).unique(dim=1, return_inverse=True)
    keep = torch.full((int(first.max()) + 1 if first.numel() else 0,), pairs.shape[1])
    keep.scatter_reduce_(0, first, torch.arange(pairs.shape[1]), "amin")
    return pairs[0, keep], pairs[1, keep]


def cat(parts: list[Tensor]) -> Tensor:
    return torch.cat(parts) if parts else torch.empty(0, dtype=torch.long)
