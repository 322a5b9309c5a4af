"""Measure how much the outputs suffer when one group of channels is pruned alone."""

import math
from collections.abc import Callable, Iterable, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor, nn

from ..calibration.closed_form import rebuilt_from_gram
from ..calibration.consumers import CalibratedConsumer, calibrated_consumers
from ..calibration.gram import Gram, gram_matrices
from ..calibration.inputs import IMAGES, CalibrationInputs, read_inputs
from ..criteria.scores import Scores
from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph, check_same_model
from ..graph.plan import PruningPlan
from ..network.calling import eval_mode, run_on, tensors_in
from ..network.model_copy import in_float32
from ..network.named_tensors import tensors_of
from ..pruning.masking import zero_consumers
from ..selection.damage_table import DamageTable, GroupDamage, balanced_units
from ..selection.rules import check_share

MEASURED_IMAGES = 400  # run for every measurement
_DAMPING = 1e-2


@torch.no_grad()
def measure_damage(
    model: nn.Module,
    graph: ChannelGraph,
    scores: Scores,
    batches: Iterable[Any],
    *,
    logits: bool = False,
    score: Callable[[nn.Module], float] | None = None,
    ratios: Sequence[float] = (0.5,),
    images: int = IMAGES,
    done: Callable[[int, int], None] = lambda number, total: None,
) -> DamageTable:
    """Prune one group at a time, rebuild its consumers, and measure how much outputs change.

    Groups that must keep equal widths are pruned together. Between and beyond the measured widths
    the damage follows the scores, so one measurement per group is usually enough.

    Args:
        model: the network that was traced; it is not changed
        graph: its channel graph, from `dafp.trace`
        scores: group name -> one score per channel, from `dafp.criteria.reconstruction_error`: the
            score of a channel is the error when it and all channels with lower scores are removed
        batches: calibration data: inputs, or (input, target) pairs; targets are not used
        logits: the first output of the model is logits: damage is the KL divergence from the
            original. Otherwise it is the relative squared error of every output tensor
        score: function of a model that returns a number, higher is better (accuracy, mAP); damage
            is how much of it is lost
        ratios: shares of the channels of a group to remove, one measurement for each
        images: number of images that are used at most; outputs are compared on 400 of them
        done: called with (number, total) after every group

    Returns:
        The table of damages, for `dafp.selection.least_damage`.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
        >>> x = torch.randn(16, 1, 8, 8)
        >>> graph = dafp.trace(model, x)
        >>> scores = dafp.criteria.reconstruction_error(model, graph, [x])
        >>> table = dafp.recovery.measure_damage(model, graph, scores, [x])
        >>> table.groups[0].names, table.groups[0].removed
        (('0',), (2,))
        >>> dafp.selection.least_damage(table, graph, target=0.25).sizes
        {'0': 4}
    """
    check_same_model(model, graph)
    for ratio in ratios:
        check_share("ratios", ratio)
    inputs = read_inputs(model, batches, "measure_damage", images)
    work, original = in_float32(model), in_float32(model)
    consumers, _ = calibrated_consumers(original, graph)
    grams = gram_matrices(original, consumers, inputs)
    damage, metric = _damage_function(original, inputs, logits, score)
    tensors = tensors_of(original)
    units = [unit for unit in balanced_units(graph) if all(name in scores for name in unit)]

    def measure(unit: tuple[str, ...]) -> GroupDamage:
        size, order = graph[unit[0]].size, _orders(scores, unit)
        counts = sorted({min(size - 1, max(1, round(ratio * size))) for ratio in ratios} - {0})
        found = []
        for count in counts:
            plan = _without(graph, unit, order, count)
            kept = graph.label_index.kept(graph.flags(plan))
            zero_consumers(work, graph, plan, compensate=False)
            for consumer in consumers:
                if consumer.weight in grams and not bool(consumer.alive(kept).all()):
                    _rebuild(work, original, consumer, kept, grams[consumer.weight])
            found.append(damage(work))
            for name, tensor in tensors_of(work).items():
                tensor.copy_(tensors[name])
        return GroupDamage(unit, size, tuple(counts), tuple(found), order, _curve(scores, unit))

    groups = []
    for number, unit in enumerate(units, 1):
        if graph[unit[0]].size > 1:
            groups.append(measure(unit))
        done(number, len(units))
    return DamageTable(tuple(groups), metric, inputs.images)


def output_damage(
    model: nn.Module, inputs: CalibrationInputs, logits: bool
) -> Callable[[nn.Module], float]:
    """A function of a model: how much its outputs differ from those of `model` on these inputs."""
    whole = _outputs(model, inputs)
    if logits and (not whole or whole[0][0].dim() < 2):
        raise PlanError("logits=True needs a model whose first output is images × classes")
    return lambda other: divergence(whole, _outputs(other, inputs), logits)


def divergence(whole: list[list[Tensor]], now: list[list[Tensor]], logits: bool) -> float:
    """KL divergence of logits, or the relative squared error, averaged over output tensors."""
    if logits:
        p, q = (torch.cat([t[0] for t in side]).double().log_softmax(1) for side in (whole, now))
        return float((p.exp() * (p - q)).sum(1).mean())
    errors = []
    for before, after in zip(_joined(whole), _joined(now), strict=True):
        spread = float((before - before.mean(0)).square().sum())
        errors.append(float((before - after).square().sum()) / max(spread, 1e-30))
    return sum(errors) / max(1, len(errors))


def _damage_function(
    original: nn.Module,
    inputs: CalibrationInputs,
    logits: bool,
    score: Callable[[nn.Module], float] | None,
) -> tuple[Callable[[nn.Module], float], str]:
    if score is None:
        few = inputs.at_most(MEASURED_IMAGES)
        metric = "KL divergence" if logits else "relative squared error"
        return _finite(output_damage(original, few, logits)), metric
    whole = _number(score, original)
    return _finite(lambda other: max(0.0, whole - _number(score, other))), "score lost"


def _finite(damage: Callable[[nn.Module], float]) -> Callable[[nn.Module], float]:
    def checked(model: nn.Module) -> float:
        value = damage(model)
        if not math.isfinite(value):
            raise PlanError(
                "the outputs are not finite when one group is pruned; look for NaN or too large "
                "numbers in batches and weights"
            )
        return value

    return checked


def _number(score: Callable[[nn.Module], float], model: nn.Module) -> float:
    try:
        value: Any = score(model)
    except Exception as error:
        raise PlanError(
            f"the score function raised {type(error).__name__}: {error}. It gets a model and "
            "returns a number, higher is better"
        ) from error
    if isinstance(value, Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
        raise PlanError(
            f"the score function returned {value!r}; it must return a finite number, higher is "
            "better"
        )
    return float(value)


def _outputs(model: nn.Module, inputs: CalibrationInputs) -> list[list[Tensor]]:
    with eval_mode(model), torch.no_grad():
        return [
            [t for t in tensors_in(run_on(model, batch, n)) if t.is_floating_point()]
            for n, batch in enumerate(inputs.batches)
        ]


def _joined(outputs: list[list[Tensor]]) -> list[Tensor]:
    """Every output tensor over all batches, one row per image."""
    count = min(len(tensors) for tensors in outputs)
    found = []
    for place in range(count):
        rows = [tensors[place].double().flatten(1) for tensors in outputs if tensors[place].dim()]
        found += [torch.cat(rows)] if len({r.shape[1] for r in rows}) == 1 else rows
    return found


def _orders(scores: Scores, unit: tuple[str, ...]) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(scores[name].argsort(stable=True).tolist()) for name in unit)


def _curve(scores: Scores, unit: tuple[str, ...]) -> tuple[float, ...]:
    """The error after removing 0, 1, … channels of each group of the unit."""
    total = torch.stack([scores[name].double().cpu().sort().values for name in unit]).sum(0)
    return (0.0, *total.tolist())


def _without(
    graph: ChannelGraph, unit: tuple[str, ...], order: tuple[tuple[int, ...], ...], count: int
) -> PruningPlan:
    pairs = list(zip(unit, order, strict=True))
    keep = {name: tuple(sorted(channels[count:])) for name, channels in pairs}
    spare = {name: tuple(reversed(channels[:count])) for name, channels in pairs}
    return graph.resolve(PruningPlan(keep, {}, spare))


def _rebuild(
    work: nn.Module,
    original: nn.Module,
    consumer: CalibratedConsumer,
    kept: Tensor,
    grams: tuple[Gram, ...],
) -> None:
    """Rebuild one consumer from the inputs that it has in the original, in place."""
    alive, old = consumer.alive(kept), consumer.map(original).matrix().double().cpu()
    pairs = [rebuilt_from_gram(old[g], alive[g], grams[g], _DAMPING) for g in range(len(old))]
    consumer.write(work, original, [new for new, _ in pairs], [shift for _, shift in pairs])
