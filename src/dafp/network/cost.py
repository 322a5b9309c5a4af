"""Count parameters and multiply-adds of a network."""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map
from torch.utils.flop_counter import FlopCounterMode

from ..errors import TraceError
from .calling import (
    FORWARD_ERRORS,
    batch_of,
    call_model,
    describe,
    eval_mode,
    fixed_seed,
    no_compilation,
    plain_attention,
    quiet,
)
from .decisions import DecisionPath, Replay, RunMode
from .named_tensors import tensors_of
from .skeleton import REAL_TENSORS, TensorKind, example_for, skeleton_of, tensor_kinds


@dataclass(frozen=True)
class Cost:
    """Parameters and multiply-adds of a network.

    Examples:
        >>> print(dafp.Cost(params=61_706, macs=416_520))
        61,706 parameters, 416,520 multiply-adds
    """

    params: int  # weights and biases, no buffers
    macs: int  # multiply-adds of one forward pass, batch of 1

    def __str__(self) -> str:
        return f"{self.params:,} parameters, {self.macs:,} multiply-adds"


def cost(model: nn.Module, example: Any) -> Cost:
    """Count parameters, and multiply-adds of one forward pass for a batch of 1.

    Convolutions, linear layers and matrix products are counted; a multiply-add counts as one.

    Args:
        model: Any `nn.Module`; it is not changed. A copy runs in eval mode, without data where
            possible.
        example: The input of the model, as for `dafp.trace`.

    Returns:
        The cost. For a pruned model it equals the prediction of the plan (`plan.after`). If the
        work depends on data, as in a detector, that holds on the example of the trace, for the
        boxes that the network found before it was pruned; a model read from a file is counted
        with the boxes it finds itself.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
        >>> dafp.cost(model, torch.zeros(1, 3, 8, 8))
        Cost(params=186, macs=5040)
    """
    counter = _count(model, example)
    return Cost(_params(model), counter.get_total_flops() // 2 // batch_of(example))


def layer_costs(model: nn.Module, example: Any) -> dict[str, Cost]:
    """The cost of every module that has its own parameters, by dotted name."""
    counter = _count(model, example)
    flops = {
        str(name).partition(".")[2]: sum(by_op.values())
        for name, by_op in counter.get_flop_counts().items()
    }
    return {
        name: Cost(_params(module), flops.get(name, 0) // 2 // batch_of(example))
        for name, module in model.named_modules()
        if name and next(module.parameters(recurse=False), None) is not None
    }


def _params(model: nn.Module) -> int:
    return sum(t.numel() for t in tensors_of(model).values() if isinstance(t, nn.Parameter))


def _count(model: nn.Module, example: Any) -> FlopCounterMode:
    """Run a copy of the network, without data where possible, and count its FLOPs."""
    if batch_of(example) == 0:
        raise TraceError(
            f"the example ({describe(example)}) has no rows, so nothing can be counted; give a "
            "batch of at least 1"
        )
    example = tree_map(lambda v: v.detach() if isinstance(v, Tensor) else v, example)
    path = getattr(getattr(model, "_dafp_pruning", None), "path", None)
    if path is not None:
        with contextlib.suppress(*FORWARD_ERRORS):  # its state may have changed since
            if path.is_for(example):
                return _count_on(path, model, example)
    for tensor_kind in tensor_kinds():
        counter = _counter()
        skeleton = _without_gradients(model, tensor_kind)
        try:
            with (
                eval_mode(skeleton),
                torch.no_grad(),
                fixed_seed(model),
                quiet(),
                no_compilation(),
                plain_attention(),
                tensor_kind.context(),
                counter,
            ):
                call_model(skeleton, example_for(example, tensor_kind))
        except FORWARD_ERRORS as error:
            if tensor_kind is REAL_TENSORS:
                raise TraceError(
                    f"{type(model).__name__} does not run on the example ({describe(example)}): "
                    f"{type(error).__name__}: {error}"
                ) from error
            continue
        return counter
    raise AssertionError("unreachable")


def _counter() -> FlopCounterMode:
    return FlopCounterMode(display=False, custom_mapping=_UNCOUNTED)


def _attention(
    query: Sequence[int], key: Sequence[int], value: Sequence[int], *args: Any, **kwargs: Any
) -> int:
    """The FLOPs of the two matrix products of an attention, from the shapes of its inputs."""
    return 2 * math.prod(query[:-1]) * key[-2] * (query[-1] + value[-1])


def _recurrent_layer(
    x: Sequence[int], inputs: Sequence[int], hidden: Sequence[int], *args: Any, **kwargs: Any
) -> int:
    """The FLOPs of one layer and direction of an LSTM or GRU: two products for every step."""
    return 2 * math.prod(x[:-1]) * (math.prod(inputs) + math.prod(hidden))


# kernels for processors, which torch does not count
_UNCOUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    torch.ops.aten.mkldnn_rnn_layer: _recurrent_layer,
}


def _count_on(path: DecisionPath, model: nn.Module, example: Any) -> FlopCounterMode:
    """Count the FLOPs of a pruned network if it decides what the network did before pruning."""
    counter = _counter()
    runs = _without_gradients(model, REAL_TENSORS)
    mode = RunMode(Replay(path.decisions))
    with (
        eval_mode(runs),
        torch.no_grad(),
        fixed_seed(model),
        no_compilation(),
        plain_attention(),
        counter,
        mode,
    ):
        call_model(runs, example)
    return counter


def _without_gradients(model: nn.Module, tensor_kind: TensorKind) -> nn.Module:
    """A skeleton; the counter fails on views that require gradients."""
    skeleton = skeleton_of(model, tensor_kind)
    for tensor in tensors_of(skeleton).values():
        tensor.requires_grad_(False)
    return skeleton
