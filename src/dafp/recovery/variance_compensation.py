"""Variance compensation: BN layers expect the variance that is left, computed without data."""

import torch
from torch import Tensor, nn

from ..criteria.activation_moments import activation_moments
from ..graph.channel_graph import ChannelGraph, check_same_model
from ..graph.label_index import LabelIndex
from ..graph.mean_target import mean_target
from ..graph.plan import PruningPlan
from ..graph.trace_log import Consumer
from ..network.model_copy import deep_copy
from ..network.named_tensors import tensors_of

_LEAST = 1e-3  # share of the variance that is taken to be left at least


@torch.no_grad()
def compensate_variances(model: nn.Module, graph: ChannelGraph, plan: PruningPlan) -> nn.Module:
    """Lower the running variance of BN layers by the share that removed channels contribute.

    Without some of its inputs, the output o of a consumer varies less, and the BN after it would
    pass on too small activations. If channels are independent, the share of the variance that is
    left is Σ_kept s_c²·‖W_oc‖² / Σ_all s_c²·‖W_oc‖², where s_c is the standard deviation of
    channel c, computed from γ and β of its BN and the activation. Prune the result with the same
    plan and `compensate=True`, which takes care of the means. No data is needed; with data,
    `dafp.reconstruct` does better.

    Args:
        model: the network that was traced; it is not changed
        graph: its channel graph, from `dafp.trace`
        plan: which channels to keep

    Returns:
        A new model of full width with other running variances.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.Conv2d(2, 2, 1, bias=False),
        ...     nn.BatchNorm2d(2), nn.Conv2d(2, 3, 1),
        ... )
        >>> model[2].weight.data = torch.tensor([[3.0, 4.0], [1.0, 1.0]]).view(2, 2, 1, 1)
        >>> graph = dafp.trace(model, torch.zeros(2, 1, 4, 4))
        >>> plan = dafp.PruningPlan({"0": (0,)})
        >>> changed = dafp.recovery.compensate_variances(model, graph, plan)
        >>> changed[3].running_var  # 3² of 3² + 4² is left, and 1² of 1² + 1²
        tensor([0.3600, 0.5000])
        >>> small = dafp.prune(changed, graph, plan, compensate=True)
    """
    check_same_model(model, graph)
    changed, label_index = deep_copy(model), graph.label_index
    alive = label_index.kept(graph.flags(graph.resolve(plan)))
    tensors = tensors_of(changed)
    shares: dict[str, list[Tensor]] = {}  # running variance -> share left by each consumer
    for consumer in label_index.consumers:
        mean, _ = mean_target(label_index, consumer)
        if mean is None or not mean.endswith("running_mean"):
            continue
        share = _share_left(tensors, label_index, consumer, alive[consumer.target])
        variance = mean.removesuffix("mean") + "var"
        if share is None or share.numel() != tensors[variance].numel():
            share = torch.ones(tensors[variance].numel(), dtype=torch.double)
        shares.setdefault(variance, []).append(share)
    for variance, found in shares.items():
        if len(found) == 1:  # a layer that is used twice would need two different variances
            tensors[variance].mul_(found[0].to(tensors[variance]))
    return changed


def _share_left(
    tensors: dict[str, Tensor], label_index: LabelIndex, consumer: Consumer, kept: Tensor
) -> Tensor | None:
    """The share of the variance of each output that is left; None if it is not known."""
    if bool(kept.all()) or label_index.block_at(int(consumer.target[0])).dim != 1:
        return None
    moments = activation_moments(tensors, label_index, consumer)
    if moments is None:
        return None
    weight = tensors[consumer.weight].detach().double().cpu()
    energy = weight.flatten(1).view(*weight.shape[:2], -1).square().sum(2)  # outputs × inputs
    groups = consumer.groups
    energy = energy.view(groups, -1, energy.shape[1])
    variance = moments.std.square().view(groups, -1, 1)
    left = energy @ (variance * kept.view(groups, -1, 1))
    return (left / (energy @ variance).clamp(min=1e-30)).clamp(min=_LEAST).flatten()
