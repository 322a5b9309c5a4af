"""The second half of a run: prune, in one step or several, and train what is left."""

import dataclasses
import math
from itertools import islice

import torch
from torch import nn

from .. import methods
from ..data import DataSet
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..methods import reconstruct
from ..models import reinitialise
from ..network.cost import layer_costs
from ..pruning.masking import mask
from ..pruning.plan_history import PlanHistory, begin
from ..pruning.pruned_model import prune, pruning_record
from ..recovery.recalibration import recalibrate
from ..selection.amounts import amount
from ..storage.atomic_write import write_atomically
from ..tracing import trace
from ..training.config import Config, Schedule
from ..training.devices import broadcast_text
from ..training.loop import TrainingContext, evaluate, train_stage
from ..training.run_records import RunResult, Sparsity
from .latency_target import plan_for_latency
from .run_log import RunLog, layers

BATCHES = 100  # of training images for recalibration, at most


def prune_and_train(
    method: methods.Method,
    task: methods.Task,
    run_log: RunLog,
    reached: float | None,
    teacher: nn.Module | None,
) -> RunResult:
    """Prune the task's model towards the target and train what is left; return the result.

    With several steps, each one prunes the network and fine-tunes it for a share of the epochs; the
    plan on disk combines all steps. Only training has checkpoints: after a restart the network is
    pruned again, with bit-identical results.
    """
    context, config, example = run_log.context, task.config, run_log.example
    before = layer_costs(task.model.cpu(), example)
    history, result = begin(task.graph), RunResult()
    for step in range(1, config.steps + 1):
        context.progress.say(
            f"pruning{_step_note(step, config)}, and verifying the pruned model "
            "against the masked one"
        )
        if context.config.unit == "latency":
            chosen, result["latency"] = plan_for_latency(method, task, context, run_log.paths)
        else:
            chosen = choose_plan(method, with_step_target(task, history, step), context)
        if method.expand is not None:
            task, chosen = method.expand(task, chosen)
            history = begin(task.graph)
        plan = history.plan_with(task.graph, chosen)
        if context.accelerator.is_main_process:
            write_atomically(run_log.paths.plan, plan.to_json().encode())
        result["sparsity"] = _sparsity(config, run_log.graph, plan, reached)
        if method.threshold is not None:
            result["sparsity"]["found_p"] = method.threshold(task, chosen)
        task.model.cpu().eval()
        empty = [name for name, kept in plan.keep.items() if not kept]
        if empty:  # a layer has no filter left: there is nothing to fine-tune
            masked = _to_device(mask(task.model, task.graph, chosen), context)
            accuracy, _ = evaluate(masked, context, "test")
            left = [
                [g.name, g.size, len(plan.keep[g.name])]
                for g in history.graph.groups
                if g.kind == "filter"
            ]
            return {**result, "collapsed": empty[0], "collapsed_accuracy": accuracy, "left": left}
        small = _pruned(method, task, chosen)
        history = history.then(task.graph, chosen, pruning_record(small).positions)
        vars(small)["_dafp_pruning"] = dataclasses.replace(pruning_record(small), plan=plan)
        result["layers"] = layers(run_log.graph, plan, before, layer_costs(small, example))
        _evaluate_pruned(small, plan, step, run_log)
        if method.finetunes:
            _train(small, plan, step, run_log, teacher)
        task = dataclasses.replace(task, model=small.cpu().eval())
        if step < config.steps:
            graph = trace(small, example, residual=config.residual, keep=config.keep)
            task = dataclasses.replace(task, graph=graph)
    run_log.save(task.model, run_log.paths.model)
    return result


def choose_plan(
    method: methods.Method, task: methods.Task, context: TrainingContext
) -> PruningPlan:
    """Choose the plan on rank 0 and send it to all ranks."""
    text = ""
    if context.accelerator.is_main_process:
        _to_device(task.model, context)
        text = method.plan(task).to_json()
    return task.graph.resolve(PruningPlan.from_json(broadcast_text(text, context.accelerator)))


def with_step_target(task: methods.Task, history: PlanHistory, step: int) -> methods.Task:
    """The task with the target of this step, as a share of the network as it is now.

    After step k of n, k/n of the target is removed from the original network.
    """
    config = task.config
    if config.steps == 1:
        return task
    first, now = (amount(history.graph, config.unit, p) for p in (None, history.plan))
    wanted = first * (1 - config.target * step / config.steps)
    share = (now - wanted) / amount(task.graph, config.unit)
    share = max(share, 1e-9)  # an earlier step may have removed more than its target
    return dataclasses.replace(task, config=dataclasses.replace(config, target=share))


def part_of(schedule: Schedule, step: int, steps: int) -> Schedule:
    """The fine-tuning schedule of one step: its share of the epochs, with the whole lr decay."""
    epochs = schedule.epochs * step // steps - schedule.epochs * (step - 1) // steps
    return dataclasses.replace(schedule, epochs=epochs)


def recalibrated(model: nn.Module, data: DataSet, config: Config) -> None:
    """Re-estimate BN statistics on augmented images, the same on every rank.

    Without augmentation, recalibration cost an unpruned network 3 points of accuracy.
    """
    batches = data.batches(
        "train",
        batch_size=min(config.batch_size, data.sizes["train"]),
        seed=config.seed,
        device=next(model.parameters()).device,
        channels_last=config.channels_last,
    )
    recalibrate(model, (x for x, _ in islice(batches, BATCHES)))


def _evaluate_pruned(small: nn.Module, plan: PruningPlan, step: int, run_log: RunLog) -> None:
    """Enter the pruned network in the run log; recalibrate it if configured; save the last step."""
    context, left, suffix = (
        run_log.context,
        _left(run_log.graph, plan),
        _stage_suffix(step, run_log.context.config),
    )
    accuracy, _ = evaluate(_to_device(small, context), context, "test")
    if context.config.recalibrate:
        run_log.enter(f"pruned{suffix}", small, left, [], accuracy)
        recalibrated(small, context.data, context.config)
        accuracy, _ = evaluate(small, context, "test")
    name = "recalibrated" if context.config.recalibrate else "pruned"
    if not suffix:
        run_log.save(small.cpu().eval(), run_log.paths.pruned)
    run_log.enter(f"{name}{suffix}", _to_device(small, context), left, [], accuracy)


def _train(
    small: nn.Module, plan: PruningPlan, step: int, run_log: RunLog, teacher: nn.Module | None
) -> None:
    context, config = run_log.context, run_log.context.config
    suffix = _stage_suffix(step, config)
    name, schedule = _last_stage(config, plan)
    if config.after != "finetune":
        torch.manual_seed(config.seed)
        reinitialise(small)
    rows = train_stage(
        small,
        context,
        name + suffix,
        part_of(schedule, step, config.steps),
        run_log.paths.checkpoint(name + suffix),
        publish=run_log.publish,
        teacher=teacher,
        later=schedule.epochs - schedule.epochs * step // config.steps,
    )
    done = "finetuned" if name == "finetune" else config.after
    run_log.enter(done + suffix, small, _left(run_log.graph, plan), rows)


def _pruned(method: methods.Method, task: methods.Task, plan: PruningPlan) -> nn.Module:
    config = task.config
    rebuild = method.rebuild or (reconstruct.rebuild if config.repair else None)
    if rebuild is None:
        compensate = config.compensate and method.expand is None  # new weights: nothing to keep
        return prune(task.model, task.graph, plan, compensate)
    return prune(rebuild(task, plan), task.graph, plan)


def _last_stage(config: Config, plan: PruningPlan) -> tuple[str, Schedule]:
    """Name and schedule: fine-tuning, or from scratch with equal epochs or equal multiply-adds."""
    if config.after == "finetune":
        return "finetune", config.finetune
    if config.after == "scratch-E":
        return "scratch", config.finetune
    assert plan.before is not None
    assert plan.after is not None
    longer = config.finetune.epochs * plan.before.macs / max(1, plan.after.macs)
    return "scratch", dataclasses.replace(config.finetune, epochs=math.ceil(longer))


def _sparsity(
    config: Config, graph: ChannelGraph, plan: PruningPlan, reached: float | None
) -> Sparsity:
    gone = graph.filters - _left(graph, plan)
    return {
        "target": config.target,
        "unit": config.unit,
        "reached": reached,
        "p": config.p,
        "removed": gone / max(1, graph.filters),
        "of_all_filters": gone / max(1, graph.all_filters),
        "forced": config.move_p and reached is not None and config.target - reached > 0.02,
    }


def _left(graph: ChannelGraph, plan: PruningPlan) -> int:
    """The filters that a plan leaves, also one for a wider network than that of the graph."""
    return sum(len(plan.keep[g.name]) for g in graph.groups if g.kind == "filter")


def _stage_suffix(step: int, config: Config) -> str:
    """Suffix of the stages of a step; the last step has none."""
    return "" if step == config.steps else f"-{step}"


def _step_note(step: int, config: Config) -> str:
    return "" if config.steps == 1 else f" (step {step} of {config.steps})"


def _to_device(model: nn.Module, context: TrainingContext) -> nn.Module:
    return model.to(context.accelerator.device)
