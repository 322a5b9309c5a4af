"""Give the mean of removed channels back to the layer that read them."""

import torch
from torch import Tensor, nn

from .copying import tensors_of
from .graph import ChannelGraph, Structure
from .moments import activation_moments
from .plan import PruningPlan


@torch.no_grad()
def give_back_means(model: nn.Module, graph: ChannelGraph, plan: PruningPlan) -> None:
    """Add what removed channels contribute on average to the reader's bias, in place.

    The mean of a channel follows from its BN's scale and shift; where the reader has no bias, the
    running mean of the BN right behind it takes the difference. Channels whose mean is unknown, and
    readers with neither, are left alone.
    """
    structure, tensors = graph.structure, tensors_of(model)
    alive = structure.alive(graph.flags(plan))
    norms = _norms_by_input(structure)
    for read in structure.reads:
        gone = ~alive[read.target]
        moments = activation_moments(tensors, structure, read)
        weight = tensors[read.weight]
        if moments is None or not bool(gone.any()):
            continue
        if structure.block_at(int(read.target[0])).dim != 1:
            continue  # transposed: how often an output hears a channel depends on its place
        owner, sign = _taker(norms, tensors, read.weight, read.output)
        if owner is None or owner.numel() != weight.shape[0]:
            continue
        lost = _contribution(weight, read.groups, moments.mean * gone)
        owner += (sign * lost).to(owner)


def _contribution(weight: Tensor, groups: int, mean: Tensor) -> Tensor:
    """Σ_c mean_c · Σ_kernel W[:, c]: one number per output channel."""
    kernel = weight.detach().double().cpu().flatten(1)
    kernel = kernel.view(*weight.shape[:2], -1).sum(2)
    if groups == 1:
        return kernel @ mean
    blocks = kernel.view(groups, -1, kernel.shape[1])
    return torch.einsum("goc,gc->go", blocks, mean.view(groups, -1)).flatten()


def _taker(
    norms: dict[tuple[int, int], str],
    tensors: dict[str, Tensor],
    weight: str,
    output: Tensor | None,
) -> tuple[Tensor | None, float]:
    """The reader's bias, or the running mean of the BN that reads its output."""
    bias = tensors.get(f"{weight.rpartition('.')[0]}.bias")
    if bias is not None:
        return bias, 1.0
    if output is None:
        return None, 0.0
    behind = norms.get((int(output[0]), output.numel()))
    if behind is None:
        return None, 0.0
    return tensors.get(f"{behind.rpartition('.')[0]}.running_mean"), -1.0


def _norms_by_input(structure: Structure) -> dict[tuple[int, int], str]:
    """(first label, width) of what a BN reads -> the BN's scale."""
    found = {}
    for tie in structure.ties:
        block = structure.block_at(int(tie.b[0]))
        whole = block.start == int(tie.b[0]) and block.size == tie.b.numel()
        if tie.kind == "norm" and whole and bool((tie.a.diff() == 1).all()):
            found[int(tie.a[0]), tie.a.numel()] = block.tensor
    return found
