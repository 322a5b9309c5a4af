"""Score channels by elimination: what the consumers lose, after the best correction by the rest.

Optimal brain surgeon (Hassibi and Stork, 1993) on whole channels. H is the Gram matrix of the
inputs of a consumer and W its weights. Removing channel c and correcting the others costs
tr(W_c·((H⁻¹)_cc)⁻¹·W_cᵀ); the cheapest channel is removed, W and H⁻¹ are updated, and so on.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..calibration.consumers import CalibratedConsumer, calibrated_consumers
from ..calibration.gram import ROWS, Gram, gram_matrices
from ..calibration.inputs import IMAGES, read_inputs
from ..graph.channel_graph import ChannelGraph
from ..network.model_copy import in_float32
from .scores import Scores, finite_scores, tensors_of_traced
from .weights import dependency_aware

DAMPING = 1e-3  # relative to the mean of the diagonal of H


@torch.no_grad()
def reconstruction_error(
    model: nn.Module,
    graph: ChannelGraph,
    batches: Iterable[Any],
    *,
    images: int = IMAGES,
    rows: int = ROWS,
    seed: int = 0,
) -> Scores:
    """Score a channel by the error that its consumers are left with when it is removed.

    Channels are removed one after the other, the cheapest first, and the weights of the others are
    corrected each time. The score of a channel is the error after its removal, with all channels
    of lower score removed too, relative to the variance of the consumer's outputs; errors of
    several consumers are added. Use it with `dafp.reconstruct`, which makes the corrections. Groups
    without a consumer that can be corrected are scored by `dependency_aware`.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`
        batches: calibration data: inputs, or (input, target) pairs; targets are not used
        images: number of images that are used at most
        rows: number of places that are sampled in each layer, about
        seed: seed of the sample

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        The second channel is a copy of the first, so one of them can be removed at no cost:

        >>> model = nn.Sequential(nn.Linear(2, 3, bias=False), nn.ReLU(), nn.Linear(3, 1))
        >>> model[0].weight.data = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        >>> x = torch.randn(64, 2)
        >>> graph = dafp.trace(model, x)
        >>> scores = dafp.criteria.reconstruction_error(model, graph, [x])["0"]
        >>> int(scores.argmin()), bool(scores.min() < 0.01 * scores.median())
        (0, True)
    """
    tensors = tensors_of_traced(model, graph)
    inputs = read_inputs(model, batches, "reconstruction_error", images)
    whole = in_float32(model)
    consumers, _ = calibrated_consumers(whole, graph)
    grams = gram_matrices(whole, consumers, inputs, rows, seed)
    fallback = dependency_aware(model, graph)
    scores = []
    for number, group in enumerate(graph.groups):
        systems = [
            system
            for consumer in consumers
            if consumer.weight in grams
            for system in _systems(whole, graph, number, consumer, grams[consumer.weight])
        ]
        scores.append(eliminate(systems, group.size) if systems else fallback[group.name])
    return finite_scores(graph, tensors, scores)


@dataclass
class System:
    """One weight group of a consumer: its weights, H⁻¹, and the columns of each channel."""

    weights: Tensor  # outputs × columns
    inverse: Tensor  # columns × columns
    columns: Tensor  # channels × columns of a channel
    scale: float  # of its errors: one over the variance of its outputs


def eliminate(systems: list[System], size: int) -> Tensor:
    """Remove channel after channel; the score of one is the error when it is removed."""
    scores = torch.zeros(size)
    left = torch.ones(size, dtype=torch.bool)
    error = 0.0
    for _ in range(size):
        cost = sum((_costs(system) * system.scale for system in systems), torch.zeros(size))
        cost[~left] = torch.inf
        worst = int(cost.argmin())
        error += float(cost[worst].clamp(min=0))
        scores[worst], left[worst] = error, False
        for system in systems:
            _remove(system, worst)
    return scores


def _costs(system: System) -> Tensor:
    """tr(W_c·((H⁻¹)_cc)⁻¹·W_cᵀ) of every channel."""
    block = system.inverse[system.columns.unsqueeze(2), system.columns.unsqueeze(1)]
    weights = system.weights[:, system.columns].permute(1, 2, 0)  # channels × columns × outputs
    factor = torch.linalg.cholesky_ex(block).L
    half = torch.linalg.solve_triangular(factor, weights, upper=False)
    costs: Tensor = half.square().sum((1, 2))
    return costs


def _remove(system: System, channel: int) -> None:
    columns = system.columns[channel]
    rows = system.inverse[columns]  # (H⁻¹)_c·
    change = torch.linalg.solve(rows[:, columns], rows)
    system.weights -= system.weights[:, columns] @ change
    system.inverse -= rows.T @ change
    system.inverse[columns] = 0.0
    system.inverse[:, columns] = 0.0
    system.inverse[columns, columns] = 1.0
    system.weights[:, columns] = 0.0


def _systems(
    model: nn.Module, graph: ChannelGraph, number: int, consumer: CalibratedConsumer,
    grams: tuple[Gram, ...],
) -> list[System]:  # fmt: skip
    label_index = graph.label_index
    labels = consumer.labels if consumer.labels.dim() == 2 else consumer.labels[..., 0]
    matrix = consumer.map(model).matrix().double().cpu()  # groups × out × in × kernel
    found = []
    for group, gram in enumerate(grams):
        mine = label_index.group_of[labels[group].clamp(min=0)] == number
        if not bool((mine & (labels[group] >= 0)).any()):
            continue
        positions = mine.nonzero().flatten()
        channel = label_index.channel_of[labels[group][positions]]
        kernel = matrix.shape[3]
        if gram.patches:
            weights = matrix[group].flatten(1)
            width = kernel
        else:
            weights = matrix[group].permute(0, 2, 1).flatten(0, 1)  # (out · kernel) × in
            width = 1
        size = graph.groups[number].size
        columns = _columns(positions, channel, size, width, weights.shape[1])
        damping = DAMPING * gram.products.diagonal().mean().clamp(min=1e-30)
        eye = torch.eye(len(gram.products), dtype=torch.double)
        variance = float((weights @ gram.products * weights).sum())
        more = int(columns.max()) + 1 - weights.shape[1]
        inverse = torch.linalg.inv(gram.products + damping * eye)
        if more > 0:
            weights = torch.nn.functional.pad(weights, (0, more))
            inverse = torch.block_diag(inverse, torch.eye(more, dtype=torch.double))
        found.append(System(weights.clone(), inverse, columns, 1 / max(variance, 1e-30)))
    return found


def _columns(positions: Tensor, channel: Tensor, size: int, width: int, total: int) -> Tensor:
    """channels × columns; channels with fewer columns get columns of zero weight."""
    counts = torch.bincount(channel, minlength=size)
    most = int(counts.max())
    columns = total + torch.arange(most * width).expand(size, -1).clone()
    place = torch.zeros(size, dtype=torch.long)
    for position, c in zip(positions.tolist(), channel.tolist(), strict=True):
        start = int(place[c]) * width
        columns[c, start : start + width] = position * width + torch.arange(width)
        place[c] += 1
    return columns
