"""First-order Taylor importance, from gradients on labelled batches."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph
from ..graph.label_index import LabelIndex
from ..network.calling import FORWARD_ERRORS, batches_of, call_model, describe, eval_mode
from .channel_norms import scale_pairs
from .scores import Scores, finite_scores, tensors_of_traced


def taylor(
    model: nn.Module,
    graph: ChannelGraph,
    batches: Iterable[tuple[Any, Tensor]],
    *,
    loss: Callable[[Any, Tensor], Tensor] = nn.functional.cross_entropy,
) -> Scores:
    """Score by the mean over batches of (z · ∂L/∂z)² for a gate z = 1 after each scale.

    After a BN, z·∂L/∂z = γ·∂L/∂γ + β·∂L/∂β, so only the gradients of the weights are needed. The
    model runs in eval mode; its weights and gradients do not change.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`
        batches: (input, target) pairs
        loss: function of (output, target) that returns a scalar

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        ...     nn.Flatten(), nn.Linear(3, 2),
        ... )
        >>> model[5].weight.data = torch.tensor([[1.0, 1.0, 0.0], [-1.0, 2.0, 0.0]])
        >>> graph = dafp.trace(model, torch.randn(1, 1, 8, 8))
        >>> batch = torch.randn(4, 1, 8, 8), torch.tensor([0, 0, 0, 1])
        >>> scores = dafp.criteria.taylor(model, graph, [batch])
        >>> scores["0"] > 0  # the third channel reaches no output
        tensor([ True,  True, False])
    """
    tensors = tensors_of_traced(model, graph)
    targets, sources = scale_pairs(graph.label_index, leaves=True)
    pairs = torch.stack(
        [graph.label_index.group_of[targets], graph.label_index.channel_of[targets], sources]
    )
    group, channel, leaf = pairs.unique(dim=1)
    parameters = {n: t for n, t in tensors.items() if isinstance(t, nn.Parameter)}
    total: list[Tensor] = [torch.zeros(g.size, dtype=torch.float32) for g in graph.groups]
    count = 0
    wanted = [p for p in parameters.values() if p.requires_grad]
    if not wanted:
        raise PlanError("taylor needs gradients, but no parameter of the model requires one")
    with eval_mode(model), torch.enable_grad():
        for batch in batches_of(batches, "taylor"):
            value = _loss(model, batch, loss)
            grads = torch.autograd.grad(value, wanted, allow_unused=True)
            by_id = {id(p): g for p, g in zip(wanted, grads, strict=True)}
            gates = _gates(graph.label_index, parameters, by_id)
            for number, sums in enumerate(total):
                mine = group == number
                change = torch.zeros_like(sums).index_add_(0, channel[mine], gates[leaf[mine]])
                sums.add_(change.square())
            count += 1
    if count == 0:
        raise PlanError("taylor got no batches; give it at least one (input, target) pair")
    return finite_scores(graph, tensors, [sums / count for sums in total])


def _loss(model: nn.Module, batch: Any, loss: Callable[[Any, Tensor], Tensor]) -> Tensor:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise PlanError(f"taylor takes (input, target) pairs; this batch is {describe(batch)}")
    x, y = batch
    try:
        return loss(call_model(model, x), y)
    except FORWARD_ERRORS as error:
        raise PlanError(
            f"model or loss do not run on a batch ({describe(x)}; target {describe(y)}): "
            f"{type(error).__name__}: {error}"
        ) from error


def _gates(
    label_index: LabelIndex, parameters: Mapping[str, Tensor], grads: Mapping[int, Tensor | None]
) -> Tensor:
    """Label -> z·∂L/∂z at the scale, or at the filter where there is no scale."""
    gates = torch.zeros(label_index.group_of.numel(), dtype=torch.float32)
    for block in label_index.blocks:
        weight = parameters.get(block.tensor)
        labels = slice(block.start, block.start + block.size)
        known = label_index.roles["scale"][labels] | label_index.roles["producer"][labels]
        if weight is None or not bool(known.any()):
            continue
        both = [weight]
        shift = parameters.get(label_index.shifts.get(block.tensor, ""))
        if shift is not None and shift.shape[:1] == weight.shape[block.dim : block.dim + 1]:
            both.append(shift)
        for tensor in both:
            grad = grads.get(id(tensor))
            if grad is not None:
                change = (tensor.detach() * grad).float().cpu()
                dims = [d for d in range(change.dim()) if d != block.dim and change.dim() > 1]
                gates[labels] += change.sum(dims) if dims else change
    return gates
