"""Run one image first: how often each consumer is called, and how much memory images take."""

import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..calibration.consumers import CalibratedConsumer
from ..calibration.inputs import CalibrationInputs, first_input
from ..errors import PlanError
from ..network.calling import eval_mode, run_on

_LIVE = 3  # tensors of the largest size that are in memory at the same time, about
_CHECKED = 64  # output places at which W·z + b is compared with the output


@dataclass
class LayerCalls:
    """What one pass over the first batch shows."""

    times: dict[str, int] = field(default_factory=dict)  # weight -> calls of its layer
    unusable: dict[str, str] = field(default_factory=dict)  # weight -> reason
    bytes_per_image: int = 0
    sizes: dict[str, "LayerSize"] = field(default_factory=dict)

    def sample_bytes(self, consumers: list[CalibratedConsumer], images: int, rows: int) -> int:
        """Bytes of the samples of all consumers, and of the largest least-squares problem."""
        kept = largest = 0
        for size in (self.sizes[c.weight] for c in consumers):
            sampled = images * min(size.positions, -(-rows // images))
            kept += 4 * sampled * (size.inputs + size.outputs)
            columns = size.inputs * size.kernel
            largest = max(largest, 8 * sampled * columns + 40 * (columns // size.groups) ** 2)
        return kept + largest


@dataclass(frozen=True)
class LayerSize:
    """The numbers of a consumer that say how much memory its samples take."""

    groups: int
    inputs: int
    outputs: int
    kernel: int
    positions: int  # of its output, of one image


def probe(
    model: nn.Module, consumers: list[CalibratedConsumer], inputs: CalibrationInputs
) -> LayerCalls:
    """Run the first images of the first batch, and look at every call of a consumer."""
    found = LayerCalls(times={c.weight: 0 for c in consumers})
    first = inputs.at_most(2)
    largest = 0

    def measure(layer: nn.Module, args: Any, output: Any) -> None:
        nonlocal largest
        tensors = [t for t in tree_leaves((args, output)) if isinstance(t, Tensor)]
        largest = max(largest, sum(t.numel() * t.element_size() for t in tensors))

    def check(consumer: CalibratedConsumer) -> Any:
        layer_map = consumer.map(model)

        def hook(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
            x = first_input(args, kwargs)
            found.times[consumer.weight] += 1
            matrix = layer_map.matrix()
            groups, outputs, inputs, kernel = matrix.shape
            positions = math.prod(layer_map.positions(output)) * len(output) // first.images
            found.sizes[consumer.weight] = LayerSize(
                groups, groups * inputs, groups * outputs, kernel, max(1, positions)
            )
            if not bool(output.isfinite().all()):
                raise PlanError(
                    f"the output of {consumer.module!r} holds NaN or infinity on these batches; "
                    "look for too large numbers in batches and weights"
                )
            places = layer_map.draw_places(output, _CHECKED, torch.Generator().manual_seed(0))
            z = layer_map.patches_at(x, layer_map.positions(output), places)
            z = z.reshape(len(z), matrix.shape[0], -1, matrix.shape[3])
            computed = torch.einsum("rgik,goik->rgo", z, matrix).flatten(1)
            computed = computed if layer.bias is None else computed + layer.bias
            given = layer_map.outputs_at(output, places)
            if not torch.allclose(computed, given, rtol=1e-3, atol=1e-3 * float(given.abs().max())):
                found.unusable[consumer.weight] = "its output is changed by hooks"

        return hook

    with eval_mode(model), ExitStack() as stack:
        for module in model.modules():
            if not module._modules:
                stack.callback(module.register_forward_hook(measure).remove)
        for consumer in consumers:
            layer = model.get_submodule(consumer.module)
            handle = layer.register_forward_hook(check(consumer), with_kwargs=True)
            stack.callback(handle.remove)
        run_on(model, first.batches[0], 0)
    found.bytes_per_image = _LIVE * largest // first.images
    for weight, times in found.times.items():
        if times == 0:
            found.unusable[weight] = "its layer is not called: a function call uses the weight"
    return found
