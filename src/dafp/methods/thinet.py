"""ThiNet (Luo et al., 2017): remove, layer by layer, what contributes least to the next layer."""

import torch
from torch import Tensor, nn

from .. import criteria
from ..graph.channel_graph import Group
from ..graph.plan import PruningPlan
from ..graph.trace_log import Consumer
from ..network.model_copy import deep_copy
from ..pruning.masked_norms import mask_norms
from ..pruning.masking import zero_consumers
from .method import Method, Task
from .rescaling import PLACES, Sample, rescalable_consumers, rescale, rescaled, sample
from .zeroing import Channels, choose, filter_groups, filter_scores, without


def discard(parts: Tensor, count: int) -> list[int]:
    """Grow the set T of discarded columns by argmin_j ‖Σ_{c∈T∪j} X_c‖², `count` times.

    X is `parts`. With G = XᵀX, the norm is ‖Σ_{c∈T} X_c‖² + 2·Σ_{c∈T} G[c, j] + G[j, j].
    """
    gram = parts.T @ parts
    cost, chosen = gram.diagonal().clone(), []
    for _ in range(count):
        worst = int(cost.argmin())
        chosen.append(worst)
        cost += 2 * gram[:, worst]
        cost[worst] = torch.inf
    return chosen


def plan(task: Task) -> PruningPlan:
    """Remove as many channels of each layer as the target requires, layer by layer.

    Each layer is sampled in the network as pruned and rescaled so far.
    """
    graph, config = task.graph, task.config
    norms = filter_scores(task, criteria.l1_norm)
    # by L1 norm: how many channels of each layer, and which where no consumer can be sampled
    gone = choose(task, norms, config.target)
    work, inputs = deep_copy(task.model), [x for x, _ in task.calibration_data()]
    consumers = rescalable_consumers(task.model, graph)
    wanted = sample(task.model, consumers, inputs, PLACES, config.seed)
    done: Channels = {}
    for group in filter_groups(graph):
        number = graph.groups.index(group)
        mine = [
            r for r in consumers if bool((graph.label_index.group_of[r.target] == number).any())
        ]
        sampled = sample(work, mine, inputs, PLACES, config.seed)
        flags = gone[group.name]
        if mine:
            parts = torch.cat(
                [_by_channel(task, group, number, r, sampled[r.weight]) for r in mine]
            )
            worst = discard(parts, int(flags.sum()))
            flags = torch.zeros_like(flags)
            flags[worst] = True
        done[group.name] = flags
        plan = graph.resolve(without(graph, {group.name: flags}))
        zero_consumers(work, graph, plan, config.compensate)
        mask_norms(work, graph, graph.resolve(without(graph, done)))
        alive = graph.label_index.kept(graph.flags(without(graph, done)))
        for consumer in mine:
            if not bool(flags.any()):
                continue
            left = sample(work, [consumer], inputs, PLACES, config.seed)[consumer.weight]
            rescale(
                work, task.model, graph, consumer, alive, left, wanted[consumer.weight].parts.sum(1)
            )
    return without(graph, done)


def _by_channel(
    task: Task, group: Group, number: int, consumer: Consumer, sampled: Sample
) -> Tensor:
    """What every channel of a group adds to the sampled output entries of one consumer."""
    label_index = task.graph.label_index
    place = consumer.target - label_index.block_at(int(consumer.target[0])).start
    here = label_index.group_of[consumer.target] == number
    parts = sampled.parts.new_zeros(len(sampled.parts), group.size)
    return parts.index_add_(
        1, label_index.channel_of[consumer.target[here]], sampled.parts[:, place[here]]
    )


def _rebuild(task: Task, plan: PruningPlan) -> nn.Module:
    config, inputs = task.config, [x for x, _ in task.calibration_data()]
    return rescaled(task.model, task.graph, plan, inputs, config.compensate, seed=config.seed)


METHOD = Method("thinet", plan, rebuild=_rebuild)
