"""LASSO regression on channels (He et al., 2017): which ones a consumer can do without.

y = Σ_c X_c are the outputs of the consumers and X_c what channel c adds to them. The channels with
β ≠ 0 in argmin ½‖y − Σ_c β_c·X_c‖² + λ·‖β‖₁ are kept; the larger λ, the fewer. Only the products
G = XᵀX and b = Xᵀy matter. The whole path of solutions, for all λ, is computed exactly: β is
piecewise linear in λ (Osborne et al., 2000; Efron et al., 2004).
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from ..calibration.consumers import CalibratedConsumer, calibrated_consumers
from ..calibration.gram import ROWS, gram_matrices
from ..calibration.inputs import IMAGES, read_inputs
from ..graph.channel_graph import ChannelGraph
from ..network.model_copy import in_float32
from .scores import Scores, finite_scores, tensors_of_traced
from .weights import dependency_aware

DAMPING = 1e-6  # added to the diagonal of G, relative to its mean: copies of a channel need it
_CLOSING = 1e-4  # how fast a correlation must approach λ, at least

Step = tuple[float, tuple[int, ...]]  # λ, and the channels with β ≠ 0 right below it


@torch.no_grad()
def lasso(
    model: nn.Module,
    graph: ChannelGraph,
    batches: Iterable[Any],
    *,
    images: int = IMAGES,
    rows: int = ROWS,
    seed: int = 0,
) -> Scores:
    """Score a channel by the largest λ at which LASSO regression still uses it.

    The outputs of the consumers are regressed on what each channel adds to them; all output
    channels and kernel positions of a consumer share the coefficient β_c of a channel. With
    several consumers the errors are added, relative to the variance of the outputs of each. Groups
    without a consumer that can be read as a matrix are scored by `dependency_aware`.

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
        The consumer does not use the second channel, so its β is zero for every λ:

        >>> model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1))
        >>> model[2].weight.data = torch.tensor([[2.0, 0.0, 1.0]])
        >>> x = torch.randn(64, 3)
        >>> graph = dafp.trace(model, x)
        >>> dafp.criteria.lasso(model, graph, [x])["0"] > 0
        tensor([ True, False,  True])
    """
    tensors = tensors_of_traced(model, graph)
    inputs = read_inputs(model, batches, "lasso", images)
    whole = in_float32(model)
    consumers, _ = calibrated_consumers(whole, graph)
    grams = gram_matrices(whole, consumers, inputs, rows, seed)
    fallback = dependency_aware(model, graph)
    scores = []
    for number, group in enumerate(graph.groups):
        gram = torch.zeros(group.size, group.size, dtype=torch.double)
        cross = torch.zeros(group.size, dtype=torch.double)
        found = False
        for consumer in consumers:
            for place, one in enumerate(grams.get(consumer.weight, ())):
                channel = channels_of(graph, number, consumer, place)
                if not bool((channel >= 0).any()):
                    continue
                found = True
                weights = consumer.map(whole).matrix()[place].double().cpu()
                products = contributions(weights, one.products, one.patches)
                part, right = by_channel(products, products.sum(1), channel, group.size)
                share = 1 / max(float(products.sum()), 1e-30)
                gram += share * part
                # what the other groups add to the outputs is left to them
                cross += share * right
        scores.append(last_used(gram, cross).float() if found else fallback[group.name])
    return finite_scores(graph, tensors, scores)


def contributions(weights: Tensor, products: Tensor, patches: bool) -> Tensor:
    """inputs × inputs: Σ over outputs and rows of what input i adds times what input j adds.

    weights: outputs × inputs × kernel. products: Gram matrix of the inputs × kernel positions
    (`patches`), or of the inputs, when kernel positions are taken to be independent.
    """
    _, inputs, kernel = weights.shape
    flat = weights.flatten(1)
    squares = (flat.T @ flat).view(inputs, kernel, inputs, kernel)
    if patches:
        return (squares * products.view(inputs, kernel, inputs, kernel)).sum((1, 3))
    return squares.diagonal(dim1=1, dim2=3).sum(2) * products


def channels_of(
    graph: ChannelGraph, number: int, consumer: CalibratedConsumer, place: int
) -> Tensor:
    """Channel of a group for every input of one weight group of a consumer; -1 for others."""
    labels = consumer.labels[place]
    labels = labels if labels.dim() == 1 else labels[:, 0]
    index = graph.label_index
    mine = (labels >= 0) & (index.group_of[labels.clamp(min=0)] == number)
    return torch.where(mine, index.channel_of[labels.clamp(min=0)], -1)


def by_channel(
    products: Tensor, cross: Tensor, channel: Tensor, size: int
) -> tuple[Tensor, Tensor]:
    """G and b of the channels of one group; the inputs of other groups stay as they are.

    `products`: between inputs; `cross`: between inputs and the wanted outputs.
    """
    mine = channel >= 0
    onto = torch.zeros(size, len(channel), dtype=products.dtype)
    onto[channel[mine], mine.nonzero().flatten()] = 1.0
    rest = cross - products @ (~mine).to(products)  # the wanted outputs less what others add
    return onto @ products @ onto.T, onto @ rest


def last_used(gram: Tensor, cross: Tensor) -> Tensor:
    """Channel -> the largest λ at which its β is not zero; 0 if it never is."""
    scores = torch.zeros(len(cross), dtype=torch.double)
    for penalty, active in lasso_path(gram, cross):
        for channel in active:
            scores[channel] = max(float(scores[channel]), penalty)
    return scores


def support(gram: Tensor, cross: Tensor, count: int) -> list[int]:
    """The channels with β ≠ 0 for the largest λ at which there are `count` of them.

    Channels that no λ ≥ 0 uses are added last, in order.
    """
    if count <= 0:
        return []
    best: tuple[int, ...] = ()
    for _, active in lasso_path(gram, cross):
        if len(active) > len(best):
            best = active
        if len(best) == count:
            return sorted(best)
    rest = [c for c in range(len(cross)) if c not in best]
    return sorted([*best, *rest[: count - len(best)]])


def lasso_path(gram: Tensor, cross: Tensor) -> list[Step]:
    """The breakpoints of argmin ½·βᵀGβ − bᵀβ + λ·‖β‖₁, from the largest λ down to 0.

    At a breakpoint a channel is added, when its correlation b − Gβ reaches λ, or is removed, when
    its β returns to zero. Between two breakpoints β_A changes by G_AA⁻¹·sign per unit of λ.
    """
    size = len(cross)
    mean = float(gram.diagonal().mean()) if size else 0.0
    if mean <= 0:
        return []
    gram = gram + DAMPING * mean * torch.eye(size, dtype=gram.dtype)
    beta, left = torch.zeros_like(cross), cross.clone()  # left: b − Gβ
    penalty = float(left.abs().max())
    smallest = 1e-9 * penalty
    active: list[int] = [int(left.abs().argmax())]
    signs = {active[0]: float(left[active[0]].sign())}
    steps: list[Step] = [(penalty, tuple(active))] if penalty > 0 else []
    for _ in range(8 * size):  # each channel is added and removed a few times at most
        if penalty <= smallest or not active:
            break
        sign = torch.tensor([signs[c] for c in active], dtype=gram.dtype)
        factor = torch.linalg.cholesky(gram[active][:, active])
        direction = torch.cholesky_solve(sign.unsqueeze(1), factor)[:, 0]
        slope = gram[:, active] @ direction  # how fast the correlations shrink
        joins = _joins(left, slope, penalty, active)
        leaves = -beta[active] / direction
        leaves = torch.where(leaves > 1e-12 * penalty, leaves, torch.inf)
        length = min(float(joins.min()), float(leaves.min()), penalty)
        beta[active] += length * direction
        left = left - length * slope
        penalty -= length
        if length == float(leaves.min()):
            gone = active[int(leaves.argmin())]
            beta[gone] = 0.0
            active.remove(gone)
        elif length == float(joins.min()):
            new = int(joins.argmin())
            active.append(new)
            signs[new] = float(left[new].sign())
        steps.append((max(penalty, 0.0), tuple(active)))
    return steps


def _joins(left: Tensor, slope: Tensor, penalty: float, active: list[int]) -> Tensor:
    """By how much λ falls until the correlation of each channel reaches it from below."""
    found = torch.full_like(left, torch.inf)
    for side in (1.0, -1.0):
        closing = 1 - side * slope
        gap = (penalty - side * left).clamp(min=0)
        # a channel that was just removed moves away, and a copy of an active one stays at λ
        late = torch.where(closing > _CLOSING, gap / closing, torch.inf)
        found = torch.minimum(found, late)
    found[active] = torch.inf
    return found
