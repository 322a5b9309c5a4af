"""A latency as the target of a run: measured before training, and again when the plan is made.

Methods remove a share of the multiply-adds. Which share removes enough of the latency is found on
the untrained network, so that training knows it and a target out of reach is refused early; it is
corrected by measuring the plans that the method makes after training. Both are kept in the file
latency.json: a run that is continued does not measure again, so its result is the same.
"""

import dataclasses
import json
from typing import Any

import torch
from torch import Tensor, nn

from .. import criteria, methods
from ..errors import TargetError
from ..graph.plan import PruningPlan
from ..latency.layer_calls import layers_of
from ..latency.layer_table import Table
from ..latency.pair_timing import LatencySetting, pair_timer, values_of, whole_latency
from ..latency.search import TOLERANCE, met, miss, nearest, search, why_missed
from ..network.model_copy import deep_copy
from ..pruning.pruned_model import prune
from ..selection.rules import step_of, uniform
from ..selection.target_value import Target
from ..selection.targets import reach
from ..storage.atomic_write import write_atomically
from ..training.config import Config
from ..training.devices import broadcast_text
from ..training.loop import TrainingContext
from ..training.memory_format import set_memory_format
from ..training.run_directory import Paths, read_json
from ..training.run_records import LatencyResult

NEAR = 2 * TOLERANCE  # of the share found before training: it will be corrected
LEAST = 1e-3  # share of the multiply-adds to remove
QUICK = 0.5  # seconds of a measurement before training


def with_share_of_macs(
    task: methods.Task, context: TrainingContext, paths: Paths
) -> tuple[methods.Task, float]:
    """The task with a share of the multiply-adds to remove, and the share of the latency it is for.

    An amount of latency that may be left becomes a share of what is measured now.
    """
    text = ""
    if context.accelerator.is_main_process:
        if not paths.latency.exists():
            context.progress.say("measuring how many multiply-adds the target of latency costs")
            write_atomically(paths.latency, _json(_before_training(task)))
        text = json.dumps(read_json(paths.latency))
    found = json.loads(broadcast_text(text, context.accelerator))
    return _aiming(_in_macs(task), found["macs"], found["round_to"]), found["share"]


def plan_for_latency(
    method: methods.Method, task: methods.Task, context: TrainingContext, paths: Paths
) -> tuple[PruningPlan, LatencyResult]:
    """The method's plan that meets the latency, with its measurement; from the file if it is there.

    Rank 0 measures, and sends the plan to all ranks.

    Args:
        method: the method of the run
        task: its task, in multiply-adds
        context: the context of the run, whose configuration has the target of latency
        paths: the run directory
    """
    text = ""
    if context.accelerator.is_main_process:
        known = read_json(paths.latency)
        if "plan" not in known:
            context.progress.say("measuring plans until the target of latency is met")
            try:
                known |= _after_training(method, task, context, known)
            except TargetError as error:
                raise TargetError(
                    f"{error}. What was trained is kept in {paths.root}: the same command measures "
                    "again"
                ) from error
            write_atomically(paths.latency, _json(known))
        text = json.dumps(known)
    known = json.loads(broadcast_text(text, context.accelerator))
    plan = PruningPlan.from_json(json.dumps(known["plan"]))
    return task.graph.resolve(plan), known["measured"]


def _before_training(task: methods.Task) -> dict[str, Any]:
    """The share of the latency to remove, and of the multiply-adds if all layers lose alike."""
    config, graph = task.config, task.graph
    setting = dataclasses.replace(setting_of(config), seconds=QUICK)
    base, example = _as_saved(task.model), _example(task)
    share = config.target
    if config.left:
        whole = whole_latency(base, example, setting).median
        share = Target("latency", left=config.left).share_of(whole)
    scores = criteria.l1_norm(base, graph)
    in_macs = _in_macs(task)

    def choose(aim: float, step: int) -> PruningPlan:
        return _aiming(in_macs, aim, step).plan_by(scores, uniform)

    with pair_timer(base, example, share, setting) as time:
        attempts = search(
            choose,
            lambda plan: time(prune(base, graph, plan)),
            share,
            _width_step(config, base, example),
            halve=_may_halve(config),
            enough=NEAR,
            predicted=_macs_removed,
        )
    best = nearest(attempts, share)
    if miss(best, share) > NEAR:
        raise TargetError(why_missed(best, attempts, share))
    return {"share": share, "macs": best.aim, "round_to": best.round_to}


def _after_training(
    method: methods.Method, task: methods.Task, context: TrainingContext, known: dict[str, Any]
) -> dict[str, Any]:
    """The plan, found by varying the share of the multiply-adds, and its measurement."""
    setting = setting_of(context.config)
    base, example = _as_saved(task.model), _example(task)
    task.model.to(context.accelerator.device)

    def choose(aim: float, step: int) -> PruningPlan:
        return task.graph.resolve(method.plan(_aiming(task, aim, step)))

    with pair_timer(base, example, known["share"], setting) as time:
        attempts = search(
            choose,
            lambda plan: time(prune(base, task.graph, plan)),
            known["share"],
            known["round_to"],
            halve=_may_halve(context.config),
            first=known["macs"],
            predicted=_macs_removed,
        )
    found = met(attempts, known["share"])
    measured = {"share": known["share"], **values_of(found, setting)}
    return {"plan": json.loads(found.plan.to_json()), "measured": measured}


def _macs_removed(plan: PruningPlan) -> float:
    assert plan.before is not None
    assert plan.after is not None
    return 1 - plan.after.macs / max(1, plan.before.macs)


def setting_of(config: Config) -> LatencySetting:
    """How the configuration has the latency measured."""
    return LatencySetting(config.runtime, config.latency_batch, config.latency_threads)


def _in_macs(task: methods.Task) -> methods.Task:
    """The task with multiply-adds as its unit, and without the settings of latency."""
    config = dataclasses.replace(
        task.config, unit="macs", left=0.0, runtime="eager", latency_batch=1, latency_threads=1
    )
    return dataclasses.replace(task, config=config)


def _aiming(task: methods.Task, macs: float, step: int) -> methods.Task:
    """The task with this share of the multiply-adds to remove, or the most that can be removed."""
    least = max(1, task.config.min_channels)
    most = reach(task.graph, "macs", min_channels=least, round_to=step)
    config = dataclasses.replace(
        task.config, target=max(LEAST, min(macs, most)), round_to=step, min_channels=least
    )
    return dataclasses.replace(task, config=config)


def _may_halve(config: Config) -> bool:
    """Whether widths may be rounded less where the target needs it: no number was asked for."""
    return config.round_to in (0, "auto")


def _width_step(config: Config, model: nn.Module, example: Tensor) -> int:
    """The step of widths that was asked for, or the largest that costs no time."""
    if not _may_halve(config):
        return step_of(config.round_to)
    table = Table(config.runtime, config.latency_batch, config.latency_threads)
    step = table.round_to(layers_of(model, example))
    table.save()
    return step


def _as_saved(model: nn.Module) -> nn.Module:
    """A copy as a saved file has it: on the CPU, in contiguous memory."""
    copy = deep_copy(model).cpu().eval()
    set_memory_format(copy, channels_last=False)
    return copy


def _example(task: methods.Task) -> Tensor:
    return torch.zeros(1, *task.data.shape, device="cpu")


def _json(values: dict[str, Any]) -> bytes:
    return (json.dumps(values, indent=1, sort_keys=True) + "\n").encode()
