"""Reconstruction: rebuild the consumers of removed channels so that outputs stay as they were.

Consumers are rebuilt by least squares on calibration data, in the order of the forward pass: their
inputs are those of the network as rebuilt so far, their goals are the outputs of the original. No
labels, gradients or training are needed. Where the output of a consumer is added to a residual
stream, its goal is corrected by the error that the stream has so far.
"""

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..calibration.closed_form import fit_from_grams
from ..calibration.consumers import CalibratedConsumer, calibrated_consumers
from ..calibration.fitting import Fit, Rows, fit
from ..calibration.gram import gram_matrices
from ..calibration.inputs import IMAGES, CalibrationInputs, first_input, read_inputs
from ..graph.channel_graph import ChannelGraph, check_same_model
from ..graph.plan import PruningPlan
from ..network.model_copy import copy_with, deep_copy, in_float32
from ..network.named_tensors import tensors_of
from ..pruning.masking import zero_consumers
from .layer_goals import LayerSample, at_places, run_with_hooks, sample_goals
from .probing import LayerCalls, probe
from .reconstruction_report import RebuiltLayer, Reconstruction, keep_report
from .residual_sums import Operand

ROWS = 40_000  # patches of each layer that are sampled, about
MEMORY = 4 * 2**30  # bytes


@torch.no_grad()
def reconstruct(
    model: nn.Module,
    graph: ChannelGraph,
    plan: PruningPlan,
    batches: Iterable[Any],
    *,
    images: int = IMAGES,
    rows: int = ROWS,
    memory: int = MEMORY,
    seed: int = 0,
) -> nn.Module:
    """Zero the consumers of removed channels and rebuild what is left of them by least squares.

    Prune the result with the same plan, without `compensate` and `recalibrate`: means and variances
    are those of the original already. `dafp.recovery.reconstruction_of(result)` returns what was
    done to each consumer.

    Args:
        model: the network that was traced; it is not changed
        graph: its channel graph, from `dafp.trace`
        plan: which channels to keep
        batches: calibration data: inputs, or (input, target) pairs; targets are not used
        images: number of images that are used at most. A quarter of them is held out to choose
            the damping
        rows: number of output places that are sampled in each layer, about
        memory: bytes that activations may take. If all images as one batch need more, every
            layer is rebuilt from the inputs of the original instead, which recovers less
        seed: seed of the sample

    Returns:
        A new model of full width: slices of removed channels are zero, kept ones are rebuilt.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
        >>> x = torch.randn(16, 1, 8, 8)
        >>> graph = dafp.trace(model, x)
        >>> plan = dafp.PruningPlan({"0": (0, 2, 3)})
        >>> rebuilt = dafp.reconstruct(model, graph, plan, [x])
        >>> error = (rebuilt(x) - model(x)).square().mean()
        >>> bool(error < (dafp.mask(model, graph, plan)(x) - model(x)).square().mean())
        True
        >>> small = dafp.prune(rebuilt, graph, plan)
    """
    check_same_model(model, graph)
    plan = graph.resolve(plan)
    inputs = read_inputs(model, batches, "reconstruct", images)
    original = in_float32(model)
    work = zero_consumers(deep_copy(original), graph, plan, compensate=False)
    kept = graph.label_index.kept(graph.flags(plan))
    consumers, skipped = calibrated_consumers(original, graph)
    losing = [c for c in consumers if not bool(c.alive(kept).all())]
    skipped = {w: why for w, why in skipped.items() if _loses_inputs(graph, w, kept)}
    calls = probe(original, losing, inputs)
    skipped |= calls.unusable
    losing = [c for c in losing if c.weight not in skipped]
    job = _Job(original, work, kept, rows, seed, inputs, bool(graph.notes))
    whole, note = _as_one_batch(inputs, calls, losing, rows, memory)
    at_once = [c for c in losing if whole is None or calls.times[c.weight] > 1]
    done = _rebuild_at_once(job, at_once)
    if whole is not None:
        in_order = [c for c in losing if c not in at_once]
        done |= _rebuild_in_order(job, in_order, whole)
    report = Reconstruction(
        tuple(done[c.weight] for c in losing),
        skipped,
        inputs.images,
        whole is not None,
        tuple(text for text in (inputs.note, note) if text),
    )
    return keep_report(_with_dtypes_of(work, model), report)


@dataclass(frozen=True)
class _Job:
    """What all steps need."""

    original: nn.Module  # in float32
    work: nn.Module  # the copy that is rebuilt
    kept: Tensor  # label -> is it kept
    rows: int
    seed: int
    inputs: CalibrationInputs
    branches: bool  # the forward may depend on the values in a batch


@dataclass(frozen=True)
class _Rebuilding:
    """A consumer that has been rebuilt, until its output is added to a residual stream."""

    sample: LayerSample
    x: Tensor  # its input
    patches: Tensor  # of its input, at the sampled places
    result: RebuiltLayer


def _rebuild_in_order(
    job: _Job, consumers: list[CalibratedConsumer], whole: Any
) -> dict[str, RebuiltLayer]:
    """Two passes: the original gives goals; the copy is rebuilt while it runs on one batch."""
    goals = sample_goals(
        job.original, job.inputs, consumers, whole, job.rows, job.seed, job.branches
    )
    samples, streams = goals.samples, goals.streams
    running: dict[str, _Rebuilding] = {}
    done: dict[str, RebuiltLayer] = {}

    def hook_for(consumer: CalibratedConsumer) -> Callable[..., None]:
        def hook(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            name, x = consumer.weight, first_input(args, kwargs)
            if name in done:
                return  # called once more, to correct its part of a sum
            sample = samples.pop(name)
            patches = consumer.map(job.work).patches_at(x, sample.positions, sample.places).cpu()
            done[name] = _rebuild(job, consumer, sample, x, patches)
            if name in streams:
                running[name] = _Rebuilding(sample, x, patches, done[name])

        return hook

    def correct(operand: Operand) -> None:
        """Rebuild a consumer once more: its goal takes the error of the stream into account."""
        state = running.pop(operand.consumer.weight, None)
        if state is not None:
            now = at_places(job.original, operand, state.sample)
            error = now - streams.pop(operand.consumer.weight)
            done[operand.consumer.weight] = _correct(job, operand, state, error)

    run_with_hooks(job.work, consumers, hook_for, whole, correct, before=True)
    return done


def _correct(job: _Job, operand: Operand, state: _Rebuilding, error: Tensor) -> RebuiltLayer:
    """Let a consumer give its old output less the error of the stream, and run it again."""
    consumer, gain = operand.consumer, _gain(job.original, operand.norm)
    goal = state.sample.goal - (error if gain is None else error * gain)
    sample = dataclasses.replace(state.sample, goal=goal)
    only = (state.result.how, state.result.damping)
    result = _rebuild(job, consumer, sample, state.x, state.patches, only)
    layer = job.work.get_submodule(consumer.module)
    output = layer(state.x)
    operand.value.copy_(job.work.get_submodule(operand.norm)(output) if operand.norm else output)
    return result


def _gain(model: nn.Module, norm: str) -> Tensor | None:
    """σ/γ of a BN: how much its input must change to change its output by one. 0 where γ ≈ 0."""
    if not norm:
        return None
    layer: Any = model.get_submodule(norm)
    if layer.running_var is None:
        return torch.zeros(1)
    scale = torch.ones_like(layer.running_var) if layer.weight is None else layer.weight
    usable = scale.abs() > 1e-3 * scale.abs().max()
    gain = (layer.running_var + layer.eps).sqrt() / torch.where(usable, scale, 1.0)
    return torch.where(usable, gain, 0.0).cpu()


def _rebuild(
    job: _Job,
    consumer: CalibratedConsumer,
    sample: LayerSample,
    x: Tensor,
    patches: Tensor,
    only: tuple[str, float] | None = None,
) -> RebuiltLayer:
    """Fit every weight group of a consumer to its goals, and write the weights into the copy."""
    pixels = consumer.map(job.work).pixels_at(x, sample.positions, sample.places).cpu()
    held, pixels_held = (
        sample.held.repeat_interleave(len(found) // len(sample.held)) for found in (patches, pixels)
    )

    def fit_group(group: int, old: Tensor, alive: Tensor, wanted: Tensor) -> Fit:
        columns = slice(group * len(alive), (group + 1) * len(alive))
        outputs = slice(group * len(old), (group + 1) * len(old))
        rows = Rows(
            patches[:, columns], sample.goal[:, outputs], held,
            pixels[:, columns], sample.pixels[:, columns], pixels_held,
        )  # fmt: skip
        return fit(old, alive, rows, bool(consumer.mean_tensor), wanted, only)

    return _rebuild_groups(job, consumer, fit_group)


def _rebuild_at_once(job: _Job, consumers: list[CalibratedConsumer]) -> dict[str, RebuiltLayer]:
    """Rebuild consumers from the inputs that they have in the original."""
    if not consumers:
        return {}
    fitted, held = (
        gram_matrices(job.original, consumers, part, job.rows, job.seed)
        for part in job.inputs.split()
    )

    def rebuilt(consumer: CalibratedConsumer) -> RebuiltLayer:
        def fit_group(group: int, old: Tensor, alive: Tensor, wanted: Tensor) -> Fit:
            grams = fitted[consumer.weight][group], held[consumer.weight][group]
            return fit_from_grams(old, alive, *grams, bool(consumer.mean_tensor), wanted)

        return _rebuild_groups(job, consumer, fit_group)

    return {consumer.weight: rebuilt(consumer) for consumer in consumers}


def _rebuild_groups(
    job: _Job,
    consumer: CalibratedConsumer,
    fit_group: Callable[[int, Tensor, Tensor, Tensor], Fit],
) -> RebuiltLayer:
    """Fit every weight group of a consumer, and write its weights and mean into the copy."""
    old = consumer.map(job.original).matrix().double().cpu()  # groups × outputs × inputs × kernel
    alive, wanted = consumer.alive(job.kept), consumer.wanted(job.kept, old.shape[:2])
    fits = [fit_group(g, old[g], alive[g], wanted[g]) for g in range(len(old))]
    consumer.write(
        job.work, job.original, [one.weights for one in fits], [one.shift for one in fits]
    )
    return RebuiltLayer.of(consumer.weight, fits)


def _as_one_batch(
    inputs: CalibrationInputs,
    calls: LayerCalls,
    consumers: list[CalibratedConsumer],
    rows: int,
    memory: int,
) -> tuple[Any | None, str]:
    """All images as one batch; or None, and why every layer is rebuilt from the original."""
    needed = inputs.images * calls.bytes_per_image
    needed += calls.sample_bytes(consumers, inputs.images, rows)
    if needed > memory:
        return None, (
            f"all layers at once: one batch of {inputs.images} images needs about "
            f"{needed / 2**30:.1f} GiB, and memory={memory / 2**30:.1f} GiB is allowed"
        )
    whole = inputs.joined()
    if whole is None:
        return None, "all layers at once: the batches cannot be joined, their shapes differ"
    return whole, ""


def _loses_inputs(graph: ChannelGraph, weight: str, kept: Tensor) -> bool:
    return any(
        not bool(kept[consumer.target].all())
        for consumer in graph.label_index.consumers
        if consumer.weight == weight
    )


def _with_dtypes_of(work: nn.Module, model: nn.Module) -> nn.Module:
    dtypes = {name: tensor.dtype for name, tensor in tensors_of(model).items()}

    def cast(name: str, tensor: Tensor) -> Tensor | None:
        wanted = dtypes.get(name, tensor.dtype)
        return None if wanted == tensor.dtype else tensor.detach().to(wanted)

    return copy_with(work, cast)
