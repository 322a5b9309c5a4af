"""ThiNet's reconstruction: kept inputs are rescaled so that outputs stay as they were.

Entries of a consumer's output are sampled; X[i, c] is what its input channel c adds to entry i. The
kept channels are multiplied by w = argmin ‖y − X·w‖², where y are the entries before pruning.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import unfold

from ..graph.channel_graph import ChannelGraph
from ..graph.mean_target import mean_target
from ..graph.plan import PruningPlan
from ..graph.trace_log import Consumer
from ..network.calling import eval_mode, run_on
from ..network.named_tensors import tensors_of
from ..pruning.masking import mask

PLACES = 10  # output entries that are sampled per image
_DAMPINGS = (1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)  # candidates: how firmly w is held near 1


@dataclass(frozen=True)
class Sample:
    """Some entries of one consumer's output, and what each input adds to them."""

    parts: Tensor  # entries × inputs of the consumer: what each input adds, without the bias
    outputs: Tensor  # the output channel of every entry


def rescaled(
    model: nn.Module,
    graph: ChannelGraph,
    plan: PruningPlan,
    inputs: list[Any],
    compensate: bool,
    *,
    places: int = PLACES,
    seed: int = 0,
) -> nn.Module:
    """The masked model with the kept inputs of every consumer rescaled, for this plan.

    Grouped and transposed consumers, and consumers that are used more than once, do not change.
    With `compensate`, means are compensated first; do not repeat it in `prune`.
    """
    plan = graph.resolve(plan)
    result = mask(model, graph, plan, compensate)
    alive = graph.label_index.kept(graph.flags(plan))
    consumers = [
        consumer
        for consumer in rescalable_consumers(model, graph)
        if not bool(alive[consumer.target].all())
    ]
    wanted = sample(model, consumers, inputs, places, seed)
    for consumer in consumers:  # in order: inputs of a consumer depend on the consumers before it
        sampled = sample(result, [consumer], inputs, places, seed)[consumer.weight]
        goal = wanted[consumer.weight].parts.sum(1)
        rescale(result, model, graph, consumer, alive, sampled, goal)
    return result


def rescalable_consumers(model: nn.Module, graph: ChannelGraph) -> list[Consumer]:
    """The consumers whose inputs can be rescaled one by one, in the order in which they run."""
    consumers = graph.label_index.consumers
    times = {
        consumer.weight: sum(r.weight == consumer.weight for r in consumers)
        for consumer in consumers
    }
    return [
        consumer for consumer in consumers
        if times[consumer.weight] == 1 and consumer.groups == 1
        and graph.label_index.block_at(int(consumer.target[0])).dim == 1
        and _is_plain(_consumer_module(model, consumer), consumer)
    ]  # fmt: skip


def sample(
    model: nn.Module, consumers: list[Consumer], inputs: list[Any], places: int, seed: int
) -> dict[str, Sample]:
    """Sample entries of the consumers' outputs: the same ones in every copy of the network."""
    found: dict[str, list[tuple[Tensor, Tensor]]] = {consumer.weight: [] for consumer in consumers}
    hooks = []
    for consumer in consumers:
        draw = torch.Generator().manual_seed(seed + zlib.crc32(consumer.weight.encode()))
        keep = _sampling_hook(draw, places, found[consumer.weight])
        hooks.append(_consumer_module(model, consumer).register_forward_pre_hook(keep))
    try:
        with eval_mode(model), torch.no_grad():
            for number, batch in enumerate(inputs):
                run_on(model, batch, number)
    finally:
        for hook in hooks:
            hook.remove()
    return {
        name: Sample(torch.cat([p for p, _ in rows]), torch.cat([o for _, o in rows]))
        for name, rows in found.items()
    }


@torch.no_grad()
def rescale(
    result: nn.Module, model: nn.Module, graph: ChannelGraph, consumer: Consumer, alive: Tensor,
    sampled: Sample, goal: Tensor,
) -> None:  # fmt: skip
    """Scale the kept inputs of one consumer so that its entries are near the goal, in place."""
    place = _places(graph, consumer)
    column, count = columns(graph, consumer)
    lives = alive[consumer.target] & (column >= 0)  # inputs that cannot be pruned do not change
    parts = sampled.parts[:, place]
    given = _compensation(result, model, graph, consumer)[sampled.outputs]
    rest = goal - given - parts[:, ~lives].sum(1)
    by_channel = parts.new_zeros(len(parts), count).index_add_(1, column[lives], parts[:, lives])
    used = torch.zeros(count, dtype=torch.bool)
    used[column[lives]] = True
    scale = torch.ones(count, dtype=torch.double)
    scale[used] = least_squares(by_channel[:, used], rest)
    weight = tensors_of(result)[consumer.weight]
    factors = torch.ones(weight.shape[1], dtype=torch.double)
    factors[place[lives]] = scale[column[lives]]
    shape = [1, -1] + [1] * (weight.dim() - 2)
    weight.mul_(factors.view(shape).to(weight))


def least_squares(parts: Tensor, goal: Tensor) -> Tensor:
    """argmin over w of ‖parts·w − goal‖² + ε·‖w − 1‖².

    ε is the candidate with the smallest error on the second half of the entries, with w fitted to
    the first half: nearly equal channels would otherwise get huge factors of opposite signs.
    """
    half = len(parts) // 2

    def error(damping: float) -> float:
        found = damped(parts[:half], goal[:half], damping)
        return float((parts[half:] @ found - goal[half:]).square().sum())

    return damped(parts, goal, min(_DAMPINGS, key=error))


def damped(parts: Tensor, goal: Tensor, damping: float) -> Tensor:
    """Least squares with ε = damping · the mean squared norm of the columns of parts."""
    gram = parts.T @ parts
    width = len(gram)
    epsilon = damping * gram.diagonal().mean().clamp(min=1e-30) if width else 0.0
    eye = torch.eye(width, dtype=gram.dtype, device=gram.device)
    found: Tensor = torch.linalg.solve(gram + epsilon * eye, parts.T @ goal + epsilon)
    return found


def columns(graph: ChannelGraph, consumer: Consumer) -> tuple[Tensor, int]:
    """The channel number of every input of a consumer (-1: not prunable), and their count."""
    label_index = graph.label_index
    group, channel = label_index.group_of[consumer.target], label_index.channel_of[consumer.target]
    free = group >= 0
    column = torch.full_like(group, -1)
    key = group[free] * (label_index.group_of.numel() + 1) + channel[free]
    names, column[free] = key.unique(return_inverse=True)
    return column, names.numel()


def _places(graph: ChannelGraph, consumer: Consumer) -> Tensor:
    """Positions of the inputs of a consumer along axis 1 of its weight."""
    return consumer.target - graph.label_index.block_at(int(consumer.target[0])).start


def _compensation(
    result: nn.Module, model: nn.Module, graph: ChannelGraph, consumer: Consumer
) -> Tensor:
    """What mean compensation already added to each output of a consumer."""
    old, new = tensors_of(model), tensors_of(result)
    compensated, sign = mean_target(graph.label_index, consumer)
    if compensated is None:
        return old[consumer.weight].new_zeros(old[consumer.weight].shape[0]).double().cpu()
    return sign * (new[compensated].double() - old[compensated].double()).cpu()


def _sampling_hook(
    draw: torch.Generator, places: int, rows: list[tuple[Tensor, Tensor]]
) -> Callable[[nn.Module, tuple[Any, ...]], None]:
    def hook(layer: nn.Module, args: tuple[Any, ...]) -> None:
        for image in args[0]:
            rows.append(_entries(layer, image, draw, places))

    return hook


def _entries(
    layer: nn.Module, image: Tensor, draw: torch.Generator, places: int
) -> tuple[Tensor, Tensor]:
    """Random entries of the output for one image: what each input adds, and their channels."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    if isinstance(layer, nn.Conv2d):
        assert not isinstance(layer.padding, str)
        window = unfold(
            image.unsqueeze(0), layer.kernel_size, layer.dilation, layer.padding, layer.stride
        )[0]
    else:
        window = image.reshape(-1, image.shape[-1]).T
    where = torch.randint(window.shape[1], (places,), generator=draw)
    output = torch.randint(weight.shape[0], (places,), generator=draw)
    patches = window[:, where.to(window.device)].double().cpu()
    patches = patches.view(weight.shape[1], -1, places)
    kernels = weight.detach()[output.to(weight.device)].double().cpu()
    kernels = kernels.view(places, weight.shape[1], -1)
    return torch.einsum("ckp,pck->pc", patches, kernels), output


def _consumer_module(model: nn.Module, consumer: Consumer) -> nn.Module:
    return model.get_submodule(consumer.weight.rpartition(".")[0])


def _is_plain(layer: nn.Module, consumer: Consumer) -> bool:
    if not consumer.weight.endswith("weight"):
        return False
    if isinstance(layer, nn.Conv2d):
        return layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear)
