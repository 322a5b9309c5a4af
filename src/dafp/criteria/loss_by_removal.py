"""The loss without each channel (Zheng et al., 2015; Anwar et al., 2017)."""

from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..calibration.inputs import first_input
from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph, Group
from ..network.calling import (
    FORWARD_ERRORS,
    batch_of,
    batches_of,
    call_model,
    describe,
    eval_mode,
)
from ..network.model_copy import deep_copy
from ..network.named_tensors import tensors_of
from .consumer_inputs import ConsumerInputs, consumer_inputs
from .scores import Scores, finite_scores, tensors_of_traced

ROWS = 2048  # images of one pass: those of a batch, once for each of several channels

Loss = Callable[[Any, Tensor], Tensor]
Pair = tuple[Any, Tensor]


@torch.no_grad()
def loss_by_removal(
    model: nn.Module,
    graph: ChannelGraph,
    batches: Iterable[tuple[Any, Tensor]],
    *,
    loss: Loss = nn.functional.cross_entropy,
    rows: int = ROWS,
) -> Scores:
    """Score a channel by the loss of the network when this channel alone is removed.

    Several channels of a group are tried in one pass: the batch is repeated, and in every copy
    another channel is zero where its consumers receive it. The model runs in eval mode.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`
        batches: (input, target) pairs
        loss: function of (output, target) that returns the mean over the images, a scalar
        rows: number of images that run at a time: more are faster, and need more memory

    Returns:
        Group name -> one score per channel; the higher, the more important.

    Examples:
        >>> model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
        >>> model[2].weight.data = torch.tensor([[5.0, 0.1, 0.0], [-5.0, 0.1, 0.0]])
        >>> x = torch.randn(64, 3)
        >>> graph = dafp.trace(model, x)
        >>> batches = [(x, model(x).argmax(1))]
        >>> scores = dafp.criteria.loss_by_removal(model, graph, batches)["0"]
        >>> int(scores.argmax()), bool(scores[1] == scores[2])  # the second moves both logits alike
        (0, True)
    """
    tensors = tensors_of_traced(model, graph)
    if rows < 1:
        raise PlanError(f"rows={rows} must be at least 1")
    pairs = [_pair(batch, number) for number, batch in enumerate(batches_of(batches, _NAME))]
    if not pairs:
        raise PlanError(f"{_NAME} got no batches; give it at least one (input, target) pair")
    with eval_mode(model):
        layers = consumer_inputs(model, graph)
        called = _called(model, layers, pairs[0], loss)
        scores = []
        for number, group in enumerate(graph.groups):
            mine = [layer for layer in layers if bool((layer.group_of == number).any())]
            weights = {slot.param for slot in group.consumers}
            if weights <= {layer.weight for layer in mine} & called:
                scores.append(_in_copies(model, mine, number, group, pairs, loss, rows))
            else:
                scores.append(_one_by_one(model, group, pairs, loss))
    return finite_scores(graph, tensors, scores)


_NAME = "loss_by_removal"


def _in_copies(
    model: nn.Module,
    layers: list[ConsumerInputs],
    number: int,
    group: Group,
    pairs: list[Pair],
    loss: Loss,
    rows: int,
) -> Tensor:
    """The mean loss without each channel, several channels in one pass."""
    total, images = torch.zeros(group.size, dtype=torch.double), 0
    for x, y in pairs:
        size = batch_of(x)
        images += size
        for channels in torch.arange(group.size).split(max(1, rows // max(1, size))):
            copies = len(channels)
            with ExitStack() as stack:
                for layer in layers:
                    here = layer.group_of == number
                    zero = here & (layer.channel_of == channels.unsqueeze(1))  # copies × inputs
                    handle = model.get_submodule(layer.module).register_forward_pre_hook(
                        _zeroing(layer, zero), with_kwargs=True
                    )
                    stack.callback(handle.remove)
                output = call_model(model, _repeated(x, size, copies))
            for place, channel in enumerate(channels.tolist()):
                part = tree_map(_rows_of(place, size, copies), output)
                total[channel] += float(loss(part, y)) * size
    return (total / images).float()


def _one_by_one(model: nn.Module, group: Group, pairs: list[Pair], loss: Loss) -> Tensor:
    """The same for consumers that are not plain layers: a pass for each channel."""
    work = deep_copy(model).eval()
    weights, scores = tensors_of(work), []
    for channel in range(group.size):
        saved = {slot.param: weights[slot.param].clone() for slot in group.consumers}
        for slot in group.consumers:
            entries = torch.tensor(slot.index).view(group.size, -1)[channel]
            weights[slot.param].index_fill_(slot.dim, entries.to(weights[slot.param].device), 0)
        sizes = [batch_of(x) for x, _ in pairs]
        values = [float(loss(call_model(work, x), y)) for x, y in pairs]
        for name, weight in saved.items():
            weights[name].copy_(weight)
        scores.append(sum(v * n for v, n in zip(values, sizes, strict=True)) / sum(sizes))
    return torch.tensor(scores)


def _called(model: nn.Module, layers: list[ConsumerInputs], pair: Pair, loss: Loss) -> set[str]:
    """The weights whose layer is called; the first batch shows whether model and loss run."""
    x, y = pair
    called: set[str] = set()
    with ExitStack() as stack:
        for layer in layers:
            module = model.get_submodule(layer.module)
            hook = module.register_forward_pre_hook(
                lambda module, args, name=layer.weight: called.add(name)
            )
            stack.callback(hook.remove)
        try:
            value = loss(call_model(model, x), y)
        except FORWARD_ERRORS as error:
            raise PlanError(
                f"model or loss do not run on a batch ({describe(x)}; target {describe(y)}): "
                f"{type(error).__name__}: {error}"
            ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise PlanError(
            f"the loss of {_NAME} is {describe(value)}; it must be one number, the mean over images"
        )
    return called


def _pair(batch: Any, number: int) -> Pair:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not isinstance(batch[1], Tensor):
        raise PlanError(
            f"{_NAME} takes (input, target) pairs; batch {number} is {describe(batch)}, "
            "without a target"
        )
    if batch_of(batch[0]) == 0:
        raise PlanError(f"batch {number} ({describe(batch)}) has no rows")
    return batch[0], batch[1]


def _zeroing(layer: ConsumerInputs, zero: Tensor) -> Callable[..., Any]:
    """A hook: in copy k of the batch, the inputs zero[k] of the layer become zero."""

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        x = first_input(args, kwargs)
        parts = x.movedim(layer.axis, 1).unflatten(0, (len(zero), -1))  # copies × rows × inputs …
        flags = zero.to(x.device).view(len(zero), 1, -1, *[1] * (x.dim() - 2))
        masked = parts.masked_fill(flags, 0).flatten(0, 1).movedim(1, layer.axis)
        return ((masked, *args[1:]), kwargs) if args else (args, {**kwargs, "input": masked})

    return hook


def _repeated(x: Any, size: int, copies: int) -> Any:
    """The batch several times, one after the other."""

    def part(leaf: Any) -> Any:
        per_image = isinstance(leaf, Tensor) and leaf.shape[:1] == (size,)
        return leaf.repeat(copies, *[1] * (leaf.dim() - 1)) if per_image else leaf

    return tree_map(part, x)


def _rows_of(place: int, size: int, copies: int) -> Callable[[Any], Any]:
    def part(leaf: Any) -> Any:
        per_image = isinstance(leaf, Tensor) and leaf.shape[:1] == (size * copies,)
        return leaf[place * size : (place + 1) * size] if per_image else leaf

    return part
