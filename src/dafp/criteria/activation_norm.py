"""The norm of a channel's activation on calibration images (Polyak and Wolf, 2015)."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from ..calibration.inputs import IMAGES, first_input, read_inputs
from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph
from ..network.calling import batch_of, eval_mode, run_on
from .consumer_inputs import ConsumerInputs, consumer_inputs
from .scores import Scores, finite_scores, tensors_of_traced
from .weights import dependency_aware

STATISTICS = ("mean", "variance")


@torch.no_grad()
def activation_norm(
    model: nn.Module,
    graph: ChannelGraph,
    batches: Iterable[Any],
    *,
    statistic: str = "mean",
    images: int = IMAGES,
) -> Scores:
    """Score channel c by the mean over images of ‖x_c‖: the norm of what its consumers receive.

    x_c are the activations of the channel at all positions of one image, as its consumers receive
    them: after BN, activation function and pooling. With several consumers, ‖x_c‖² is summed over
    them. Groups whose consumers cannot be measured are scored by `dependency_aware`.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`
        batches: calibration data: inputs, or (input, target) pairs; targets are not used
        statistic: "mean", or "variance": the variance of ‖x_c‖ over images, which is small for a
            channel that is active in the same way on every image
        images: number of images that are used at most

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 3, 1, bias=False), nn.ReLU(), nn.Conv2d(3, 2, 1))
        >>> model[0].weight.data = torch.tensor([1.0, 2.0, -1.0]).view(3, 1, 1, 1)
        >>> x = torch.tensor([[[[3.0, 4.0]]], [[[0.0, 1.0]]]])
        >>> graph = dafp.trace(model, x)
        >>> dafp.criteria.activation_norm(model, graph, [x])  # norms 5 and 1, 10 and 2, 0 and 0
        {'0': tensor([3., 6., 0.])}
    """
    tensors = tensors_of_traced(model, graph)
    if statistic not in STATISTICS:
        raise PlanError(f"statistic={statistic!r} is not known; choose 'mean' or 'variance'")
    inputs = read_inputs(model, batches, "activation_norm", images)
    fallback = dependency_aware(model, graph)
    squares: dict[int, Tensor] = {}  # of the current batch: group -> images × channels
    sums: dict[int, Tensor] = {}  # group -> Σ ‖x_c‖ and Σ ‖x_c‖²
    with eval_mode(model), ExitStack() as stack:
        size = 0

        def add(layer: ConsumerInputs, x: Tensor) -> None:
            per_image = _squares(layer, x, size)
            for number in layer.group_of.unique().tolist():
                if number >= 0:
                    mine = layer.group_of == number
                    total = squares.get(number)
                    if total is None:
                        total = torch.zeros(size, graph.groups[number].size, dtype=torch.double)
                        squares[number] = total
                    total.index_add_(1, layer.channel_of[mine], per_image[:, mine])

        for layer in consumer_inputs(model, graph):
            module = model.get_submodule(layer.module)
            handle = module.register_forward_pre_hook(_hook(layer, add), with_kwargs=True)
            stack.callback(handle.remove)
        for number, batch in enumerate(inputs.batches):
            squares.clear()
            size = batch_of(batch)
            run_on(model, batch, number)
            for group, total in squares.items():
                both = torch.stack([total.sqrt().sum(0), total.sum(0)])
                sums[group] = sums.get(group, torch.zeros_like(both)) + both
    scores = [
        _score(sums[number] / inputs.images, statistic) if number in sums else fallback[group.name]
        for number, group in enumerate(graph.groups)
    ]
    return finite_scores(graph, tensors, scores)


def _score(means: Tensor, statistic: str) -> Tensor:
    """From the means of ‖x_c‖ and ‖x_c‖² over all images."""
    if statistic == "mean":
        return means[0].float()
    return (means[1] - means[0].square()).clamp(min=0).float()


def _squares(layer: ConsumerInputs, x: Tensor, images: int) -> Tensor:
    """images × inputs: the sum of squares of every input over its positions."""
    if x.shape[0] % images:
        raise PlanError(
            f"{layer.module!r} receives {x.shape[0]} rows for {images} images, so activation_norm "
            "cannot tell which image a row belongs to; choose another criterion"
        )
    rows = x.detach().movedim(layer.axis, 1).flatten(2) if x.dim() > 2 else x.detach().unsqueeze(2)
    found = rows.double().square().sum(2).cpu()
    return found.view(images, -1, found.shape[1]).sum(1)


def _hook(
    layer: ConsumerInputs, add: Callable[[ConsumerInputs, Tensor], None]
) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        add(layer, first_input(args, kwargs))

    return hook
