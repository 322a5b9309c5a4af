"""What the consumers of a network give on calibration data, at some sampled places."""

import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..calibration.consumers import CalibratedConsumer
from ..calibration.inputs import CalibrationInputs, first_input, held_out
from ..network.calling import batch_of, call_model, eval_mode
from .residual_sums import Operand, watch_sums


@dataclass(frozen=True)
class LayerSample:
    """The original at the sampled places of a consumer."""

    places: Tensor
    positions: tuple[int, ...]
    goal: Tensor  # rows × outputs, without the bias
    pixels: Tensor
    held: Tensor  # which images of the batch are held out

    @classmethod
    def joined(cls, parts: Sequence["LayerSample"]) -> "LayerSample":
        """The samples of several batches as one."""
        places, goal, pixels, held = (
            torch.cat([getattr(part, name) for part in parts])
            for name in ("places", "goal", "pixels", "held")
        )
        return cls(places, parts[0].positions, goal, pixels, held)


@dataclass(frozen=True)
class _BatchPart:
    """Which of all images a batch holds."""

    start: int
    images: int
    of: int  # all images


@dataclass(frozen=True)
class Goals:
    """What every consumer gave in the original, and what its output was added to."""

    samples: dict[str, LayerSample]  # by the name of the weight
    streams: dict[str, Tensor]  # the other operand of its sum, at the same places


def sample_goals(
    model: nn.Module,
    inputs: CalibrationInputs,
    consumers: list[CalibratedConsumer],
    whole: Any,
    rows: int,
    seed: int,
    branches: bool,
) -> Goals:
    """Run the original batch by batch, which is faster than `whole`, all inputs as one batch.

    If batches may take different ways through the network (`branches`), `whole` is run instead.
    """
    batches = [whole] if branches else inputs.batches
    goals = _by_batches(model, batches, inputs.images, consumers, rows, seed)
    if goals is None:
        goals = _by_batches(model, [whole], inputs.images, consumers, rows, seed)
    assert goals is not None
    return goals


def _by_batches(
    model: nn.Module,
    batches: Iterable[Any],
    images: int,
    consumers: list[CalibratedConsumer],
    rows: int,
    seed: int,
) -> Goals | None:
    """The goals of all batches; None if a batch does not use the consumers that another uses."""
    parts: dict[str, list[LayerSample]] = {c.weight: [] for c in consumers}
    streams: dict[str, list[Tensor]] = {}
    drawn: dict[str, Tensor] = {}  # weight -> sampled places of all images
    start = count = 0
    for batch in batches:
        part = _BatchPart(start, batch_of(batch), images)

        def stream(operand: Operand) -> None:
            name = operand.consumer.weight
            streams.setdefault(name, []).append(at_places(model, operand, parts[name][-1]))

        hook_for = partial(_sampling_hook, model, part, rows, seed, drawn, parts)
        run_with_hooks(model, consumers, hook_for, batch, stream, before=False)
        start, count = start + part.images, count + 1
    lengths = {len(found) for found in parts.values()} | {len(f) for f in streams.values()}
    if lengths - {count}:
        return None
    return Goals(
        {name: LayerSample.joined(found) for name, found in parts.items()},
        {name: torch.cat(found) for name, found in streams.items()},
    )


def at_places(model: nn.Module, operand: Operand, sample: LayerSample) -> Tensor:
    """What the output of a consumer is added to, at the sampled places."""
    layer_map = operand.consumer.map(model)
    return layer_map.outputs_at(operand.other, sample.places).cpu()


def _sampling_hook(
    model: nn.Module,
    part: _BatchPart,
    sampled: int,
    seed: int,
    drawn: dict[str, Tensor],
    samples: dict[str, list[LayerSample]],
    consumer: CalibratedConsumer,
) -> Callable[..., None]:
    layer_map, name, images = consumer.map(model), consumer.weight, part.of

    def hook(layer: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        rows = len(output) // part.images  # of one image: 1, unless the network splits images
        if name not in drawn:  # of all images at once: batches do not change the sample
            draw = torch.Generator().manual_seed(seed + zlib.crc32(name.encode()))
            per_row = max(1, -(-sampled // (rows * images)))
            drawn[name] = layer_map.draw_places(output, per_row, draw, rows * images)
        places = drawn[name][rows * part.start :][: len(output)]
        positions = layer_map.positions(output)
        goal = layer_map.outputs_at(output, places)
        if layer.bias is not None:
            goal = goal - layer.bias
        pixels = layer_map.pixels_at(first_input(args, kwargs), positions, places)
        image = part.start + torch.arange(len(output)) // rows
        held = held_out(image, images)
        samples[name].append(LayerSample(places, positions, goal.cpu(), pixels.cpu(), held))

    return hook


def run_with_hooks(
    model: nn.Module,
    consumers: list[CalibratedConsumer],
    hook_for: Callable[[CalibratedConsumer], Callable[..., None]],
    whole: Any,
    on_sum: Callable[[Operand], None],
    *,
    before: bool,
) -> None:
    """Run the model with a hook on every consumer, before or after its layer."""
    with eval_mode(model), ExitStack() as stack:
        for consumer in consumers:
            layer = model.get_submodule(consumer.module)
            register = layer.register_forward_pre_hook if before else layer.register_forward_hook
            stack.callback(register(hook_for(consumer), with_kwargs=True).remove)
        stack.enter_context(watch_sums(model, consumers, on_sum))
        call_model(model, whole)
