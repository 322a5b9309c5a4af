"""The work of `dafp prune`: prune a model, verify it and write it to a file."""

import dataclasses
import json
from pathlib import Path

import typer
from rich.console import Console

from .. import __version__, selection
from ..choices import RULES
from ..criteria.scores import Scores
from ..data import DataSet
from ..errors import FileError, ModelError, PlanError
from ..files import model_file
from ..graph.channel_graph import ChannelGraph
from ..graph.kept_groups import keep_groups
from ..graph.plan import PruningPlan
from ..latency.pair_timing import LatencySetting, values_of
from ..latency.search import LatencyPlan
from ..network.cost import Cost, cost
from ..network.model_info import ModelInfo, info_of, with_info
from ..one_call import failing_sentence, prune_with_data, prune_without_data, slim_report
from ..report import write_damage
from ..report.speed import rounding_line, speed_line
from ..runs.loading import info_in
from ..runs.pipeline import open_data
from ..runs.run_log import speeds
from ..selection.damage_table import DamageTable
from ..selection.target_value import Target
from ..storage.atomic_write import write_atomically
from ..tracing import trace
from ..training.run_directory import read_config
from .calibration_images import accuracy_on_test, calibration_images, calibration_set
from .model_argument import is_saved, network
from .printing import printer, say, table_of
from .progress import step_progress
from .target_options import (
    floors_from_options,
    latency_sentence,
    plan_for,
    target_from_options,
)


def prune(
    *,
    model: str,
    weights: Path | None,
    ratio: float | None,
    unit: str | None,
    target: str | None,
    runtime: str,
    batch: int,
    threads: int,
    data: str | None,
    root: Path,
    skip_unreadable: bool,
    images: int,
    mean: str | None,
    std: str | None,
    fast: bool,
    damage: Path | None,
    data_free: bool,
    criterion: str | None,
    rule: str | None,
    round_to: str | None,
    min_channels: int | None,
    compensate: bool,
    out: Path,
    input_shape: str | None,
    classes: int | None,
    width: float,
    builder: str | None,
    trust: bool,
    residual: str,
    keep: list[str] | None,
    as_json: bool,
) -> None:
    """Prune the model to the target, save it, and print its widths and cost."""
    _refuse(model, data, rule, fast, damage, data_free)
    goal = target_from_options(target, ratio, unit)
    by_rule = rule is not None or fast
    floors = floors_from_options(goal, round_to, min_channels, by_rule)
    known = (
        None if data_free else _images(model, data, root, mean, std, input_shape, skip_unreadable)
    )
    if known is not None and known.resize and not as_json:
        say(known.sentence())
    if known is not None and not is_saved(model):
        classes = known.classes if classes is None else classes
    if known is not None and input_shape is None:
        input_shape = ",".join(map(str, (1, *known.shape)))
    net, example = network(
        model, weights, input_shape, classes, width, builder=builder, trust=trust
    )
    graph = trace(net, example, residual=residual, keep=keep or ())
    setting = LatencySetting(runtime, batch, threads)
    chosen = selection.uniform if rule is None else getattr(selection, rule)
    measured: LatencyPlan | None = None

    def widths(left: ChannelGraph, scores: Scores, table: DamageTable | None) -> PruningPlan:
        nonlocal measured
        plan, measured = plan_for(
            net, graph, left, scores, example, goal, chosen, setting, table,
            **floors,
        )  # fmt: skip
        return plan

    if known is None:
        small = prune_without_data(
            net, graph, widths, criterion=criterion, expect=not by_rule, compensate=compensate
        )
    else:
        with step_progress(quiet=as_json) as progress:
            small = prune_with_data(
                net, graph, calibration_images(known, images), widths, criterion=criterion,
                measure=not by_rule, table=_read_table(damage), logits=True, images=images,
                progress=progress,
            )  # fmt: skip
        table = slim_report(small).table
        if damage is not None and table is not None:
            write_atomically(damage, (table.to_json() + "\n").encode())
            write_damage(table, damage.with_suffix(".html"))
    plan, failing = slim_report(small).plan, slim_report(small).failing
    graph = keep_groups(graph, {kept.name: kept.reason for kept in failing})
    after = cost(small, example)
    speed = None if measured is not None else speeds([net, small], example, 1)[1]
    accuracies = {}
    if known is not None:
        accuracies = {
            "accuracy_before": accuracy_on_test(net, known),
            "accuracy_after": accuracy_on_test(small, known),
        }
    done = {"command": "prune", "dafp": __version__, **_said(goal)}
    model_file.save(with_info(small, _info(info_of(net), known, {**done, **accuracies})), out)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "file": str(out),
                    "verified": True,
                    "plan": json.loads(plan.to_json()),
                    "before": vars(plan.before),
                    "after": vars(after),
                    "filters": graph.filters,
                    "filters_removed": _removed(graph, plan),
                    "failing_groups": [kept.name for kept in failing],
                    **({} if measured is None else {"latency": values_of(measured, setting)}),
                    **({} if speed is None else {"speed": speed}),
                    **accuracies,
                }
            )
        )
        return
    console = printer()
    _print_widths(console, graph, plan)
    _print_before_after(console, model, graph, plan, after, accuracies)
    rounded = floors.get("round_to") == "auto"
    remarks = [
        latency_sentence(values_of(measured, setting)) if measured is not None else "",
        rounding_line(_widths(graph, plan)) if rounded and measured is None else "",
        speed_line(speed, graph.whole.macs, after.macs) if speed is not None else "",
        failing_sentence(slim_report(small)) if failing else "",
    ]
    for remark in filter(None, remarks):
        console.print(remark, highlight=False)
    console.print(f"verified against the masked model; written to {out}", highlight=False)


def _refuse(
    model: str, data: str | None, rule: str | None, fast: bool, damage: Path | None, data_free: bool
) -> None:
    """Raise if options contradict each other."""
    if rule is not None and rule not in RULES:
        raise ModelError(f"rule {rule!r} is not known; choose one of {', '.join(RULES)}")
    if data is None and (fast or damage is not None) and not Path(model).is_dir():
        option = "--fast" if fast else "--damage"
        raise PlanError(f"{option} concerns calibration images: give --data as well")
    if damage is not None and (fast or rule is not None):
        raise PlanError(f"--damage measures widths, {'--fast' if fast else '--rule'} does not")
    if data is not None and data_free:
        raise PlanError("--data-free uses no images; leave it out, or leave --data out")


def _images(
    model: str,
    data: str | None,
    root: Path,
    mean: str | None,
    std: str | None,
    input_shape: str | None,
    skip_unreadable: bool,
) -> DataSet | None:
    """The images of --data; without it, those that a run was trained on."""
    path = Path(model)
    if data is not None:
        info = info_in(path) if is_saved(model) else ModelInfo()
        return calibration_set(data, root, mean, std, info, input_shape, skip_unreadable)
    return open_data(read_config(path)) if path.is_dir() else None


def _info(info: ModelInfo, known: DataSet | None, done: dict[str, object]) -> ModelInfo:
    """What is known of the pruned model."""
    info = dataclasses.replace(info, history=(*info.history, done))
    if known is None:
        return info
    return dataclasses.replace(
        info,
        input=known.shape,
        mean=known.mean,
        std=known.std,
        resize=known.resize,
        classes=known.class_names or info.classes,
        data=known.name,
    )


def _said(goal: Target) -> dict[str, object]:
    return {"unit": goal.unit, **({"target": goal.share} if goal.share else {"left": goal.left})}


def _read_table(file: Path | None) -> DamageTable | None:
    """The table of an earlier call, if there is a file; it is checked before any work is done."""
    if file is None or not file.exists():
        return None
    try:
        return DamageTable.from_json(file.read_text(encoding="utf-8"))
    except (FileError, OSError, UnicodeDecodeError) as error:
        raise FileError(f"{file}: {error}; give another file, or delete this one") from error


def _removed(graph: ChannelGraph, plan: PruningPlan) -> int:
    """Channels removed from filter groups; channels tied to each other count once."""
    return sum(g.size - len(plan.keep[g.name]) for g in graph.groups if g.kind == "filter")


def _removed_filters(graph: ChannelGraph, plan: PruningPlan) -> int:
    """Filters removed by the plan; filters that are tied to each other count separately."""
    return sum(
        (g.size - len(plan.keep[g.name])) * sum(len(s.index) for s in g.producers) // g.size
        for g in graph.groups
    )


def _widths(graph: ChannelGraph, plan: PruningPlan) -> list[tuple[int, int]]:
    return [(group.size, len(plan.keep[group.name])) for group in graph.groups]


def _print_widths(console: Console, graph: ChannelGraph, plan: PruningPlan) -> None:
    table = table_of("widths", ["group", "kind"], ["before", "after", "removed"])
    for group in graph.groups:
        left = len(plan.keep[group.name])
        table.add_row(
            group.name, group.kind, str(group.size), str(left), f"{1 - left / group.size:.0%}"
        )
    console.print(table)


def _print_before_after(
    console: Console,
    name: str,
    graph: ChannelGraph,
    plan: PruningPlan,
    after: Cost,
    accuracies: dict[str, float],
) -> None:
    assert plan.before is not None
    gone = _removed(graph, plan)
    table = table_of(name, [""], ["before", "after", "removed"])
    rows = (
        ("prunable filters", graph.filters, graph.filters - gone),
        ("all filters", graph.all_filters, graph.all_filters - _removed_filters(graph, plan)),
        ("parameters", plan.before.params, after.params),
        ("multiply-adds", plan.before.macs, after.macs),
    )
    for label, old, new in rows:
        table.add_row(label, f"{old:,}", f"{new:,}", f"{1 - new / max(1, old):.1%}")
    if accuracies:
        whole, left = accuracies["accuracy_before"], accuracies["accuracy_after"]
        table.add_row("test accuracy", f"{whole:.2%}", f"{left:.2%}", "")
    console.print(table)
