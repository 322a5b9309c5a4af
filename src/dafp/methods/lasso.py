"""Channel pruning (He et al., 2017): LASSO selects, least squares reconstructs, layer by layer."""

import zlib
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn

from .. import criteria
from ..calibration.consumers import CalibratedConsumer, calibrated_consumers
from ..calibration.inputs import CalibrationInputs, first_input, read_inputs
from ..calibration.least_squares import Products, mean_shift, products, solve
from ..criteria.lasso import by_channel, channels_of, contributions, support
from ..graph.plan import PruningPlan
from ..network.calling import eval_mode, run_on
from ..network.model_copy import deep_copy, in_float32
from ..pruning.masked_norms import mask_norms
from ..pruning.masking import zero_consumers
from . import reconstruct
from .method import Method, Task
from .zeroing import Channels, choose, filter_groups, filter_scores, without

PLACES = 10  # sampled places of each image
DAMPING = 1e-3  # of the least squares between two selections


@torch.no_grad()
def plan(task: Task) -> PruningPlan:
    """Remove the same share of every layer: which channels, LASSO decides, layer by layer.

    The inputs of a layer are those of the network as pruned and rebuilt so far; the outputs to be
    reached are those of the original.
    """
    graph = task.graph
    norms = filter_scores(task, criteria.l1_norm)
    # by L1 norm: how many channels of each layer, and which where no consumer can be sampled
    gone = choose(task, norms, task.config.target)
    batches = [x for x, _ in task.calibration_data(reconstruct.PER_CLASS)]
    inputs = read_inputs(task.model, batches, "lasso")
    original = in_float32(task.model)
    work = deep_copy(original)
    consumers, _ = calibrated_consumers(original, graph)
    whole = [torch.ones(group.size, dtype=torch.bool) for group in graph.groups]
    done: Channels = {}
    for group in filter_groups(graph):
        number = graph.groups.index(group)
        mine = [c for c in consumers if _consumes(task, number, c)]
        sums = _products(task, original, work, mine, inputs)
        flags = gone[group.name]
        mine = [c for c in mine if c.weight in sums]
        if mine and bool(flags.any()):
            gram = torch.zeros(group.size, group.size, dtype=torch.double)
            cross = torch.zeros(group.size, dtype=torch.double)
            for consumer in mine:
                part, right = _system(task, original, number, consumer, sums[consumer.weight])
                gram, cross = gram + part, cross + right
            kept = support(gram, cross, int((~flags).sum()))
            flags = torch.ones_like(flags)
            flags[kept] = False
        done[group.name] = flags
        if not bool(flags.any()):
            continue
        resolved = graph.resolve(without(graph, {group.name: flags}))
        zero_consumers(work, graph, resolved, compensate=False)
        mask_norms(work, graph, graph.resolve(without(graph, done)))
        now = dict(zip((g.name for g in graph.groups), whole, strict=True))
        now |= {name: ~removed for name, removed in done.items()}
        alive = graph.label_index.kept(list(now.values()))
        for consumer in mine:
            _refit(original, work, consumer, alive, sums[consumer.weight])
    return without(graph, done)


def _consumes(task: Task, number: int, consumer: CalibratedConsumer) -> bool:
    return any(
        bool((channels_of(task.graph, number, consumer, place) >= 0).any())
        for place in range(consumer.groups)
    )


def _system(
    task: Task,
    original: nn.Module,
    number: int,
    consumer: CalibratedConsumer,
    sums: list[Products],
) -> tuple[Tensor, Tensor]:
    """G and b of one consumer, relative to the variance of its outputs in the original."""
    size = task.graph.groups[number].size
    gram = torch.zeros(size, size, dtype=torch.double)
    cross = torch.zeros(size, dtype=torch.double)
    scale = 0.0
    for place, one in enumerate(sums):
        weights = consumer.map(original).matrix()[place].double().cpu()
        zz, zt = one.about(bool(consumer.mean_tensor))
        _, inputs, kernel = weights.shape
        channel = channels_of(task.graph, number, consumer, place)
        wanted = (zt.view(inputs, kernel, -1) * weights.permute(1, 2, 0)).sum((1, 2))
        part, right = by_channel(contributions(weights, zz, True), wanted, channel, size)
        gram, cross = gram + part, cross + right
        scale += float(wanted.abs().sum())
    return gram / max(scale, 1e-30), cross / max(scale, 1e-30)


@torch.no_grad()
def _refit(
    original: nn.Module,
    work: nn.Module,
    consumer: CalibratedConsumer,
    alive: Tensor,
    sums: list[Products],
) -> None:
    """Rebuild the weights of the inputs that are left by least squares, in `work`."""
    old = consumer.map(original).matrix().double().cpu()
    matrices, shifts = [], []
    for place, one in enumerate(sums):
        kernel = old.shape[3]
        columns = consumer.alive(alive)[place].repeat_interleave(kernel)
        kept = Products(
            one.count, one.z[columns], one.t, one.zz[columns][:, columns], one.zt[columns]
        )
        start = old[place].flatten(1)
        centred = bool(consumer.mean_tensor)
        weights = torch.zeros_like(start)
        weights[:, columns] = solve(kept, start[:, columns], DAMPING, centred)
        matrices.append(weights.view(old.shape[1:]))
        shifts.append(
            mean_shift(kept, weights[:, columns]) if centred else weights.new_zeros(len(weights))
        )
    consumer.write(work, original, matrices, shifts)


@torch.no_grad()
def _products(
    task: Task,
    original: nn.Module,
    work: nn.Module,
    consumers: list[CalibratedConsumer],
    inputs: CalibrationInputs,
) -> dict[str, list[Products]]:
    """Consumer -> products of its inputs in `work` and its outputs in the original, per group.

    Consumers that are not called exactly once in a forward pass are left out.
    """
    goals = _sampled(task, original, consumers, inputs, _goals)
    found = _sampled(task, work, consumers, inputs, _patches)
    sums = {}
    for consumer in consumers:
        name = consumer.weight
        if len(goals[name]) != len(inputs.batches) or len(found[name]) != len(inputs.batches):
            continue
        t, z = torch.cat(goals[name]), torch.cat(found[name])
        parts = zip(z.chunk(consumer.groups, 1), t.chunk(consumer.groups, 1), strict=True)
        sums[name] = [products(a.flatten(1), b) for a, b in parts]
    return sums


Taken = Callable[[CalibratedConsumer, nn.Module, Tensor, Tensor, Tensor], Tensor]


def _sampled(
    task: Task,
    model: nn.Module,
    consumers: list[CalibratedConsumer],
    inputs: CalibrationInputs,
    take: Taken,
) -> dict[str, list[Tensor]]:
    """Run a model, and take samples at places that are the same for every model."""
    found: dict[str, list[Tensor]] = {consumer.weight: [] for consumer in consumers}

    def hook_for(consumer: CalibratedConsumer) -> Callable[..., None]:
        seed = task.config.seed + zlib.crc32(consumer.weight.encode())
        draw = torch.Generator().manual_seed(seed)

        def hook(layer: nn.Module, args: Any, kwargs: Any, output: Tensor) -> None:
            x = first_input(args, kwargs)
            places = consumer.map(model).draw_places(output, PLACES, draw)
            found[consumer.weight].append(take(consumer, model, x, output, places))

        return hook

    with eval_mode(model), ExitStack() as stack:
        for consumer in consumers:
            layer = model.get_submodule(consumer.module)
            handle = layer.register_forward_hook(hook_for(consumer), with_kwargs=True)
            stack.callback(handle.remove)
        for number, batch in enumerate(inputs.batches):
            run_on(model, batch, number)
    return found


def _goals(
    consumer: CalibratedConsumer, model: nn.Module, x: Tensor, output: Tensor, places: Tensor
) -> Tensor:
    """rows × outputs: without the bias, as in W·z."""
    bias = model.get_submodule(consumer.module).bias
    wanted = consumer.map(model).outputs_at(output, places)
    return (wanted - bias if isinstance(bias, Tensor) else wanted).cpu()


def _patches(
    consumer: CalibratedConsumer, model: nn.Module, x: Tensor, output: Tensor, places: Tensor
) -> Tensor:
    """rows × inputs × kernel."""
    layer_map = consumer.map(model)
    return layer_map.patches_at(x, layer_map.positions(output), places).cpu()


METHOD = Method("lasso", plan, rebuild=reconstruct.rebuild)
