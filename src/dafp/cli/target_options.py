"""The option `--target UNIT=SHARE` of `dafp prune`, and the plan that meets it."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from .. import selection
from ..criteria.scores import Scores
from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..latency.pair_timing import LatencySetting, whole_latency
from ..latency.search import LatencyPlan
from ..latency.target import to_latency
from ..selection.amounts import amount
from ..selection.damage_table import DamageTable
from ..selection.groups_left import share_of_groups_left
from ..selection.target_value import Target, in_percent, parse_target
from ..selection.width_step import width_step


def target_from_options(target: str | None, ratio: float | None, unit: str | None) -> Target:
    """The target from --target, or from --ratio and --unit; both together are refused."""
    if target is not None:
        if ratio is not None or unit is not None:
            raise PlanError(
                f"--target {target} gives both share and unit; leave --ratio and --unit out, or "
                "give them instead of --target"
            )
        return parse_target(target)
    if ratio is not None and not 0 < ratio < 1:
        raise PlanError(
            f"--ratio {ratio:g}: the share to remove, between 0 and 1{in_percent(ratio)}; --target "
            "macs=2G leaves two billion multiply-adds"
        )
    return Target(unit or "filters", share=0.5 if ratio is None else ratio)


def step_from_option(round_to: str | None) -> int | str | None:
    """The value of --round-to."""
    if round_to is None or round_to == "auto":
        return round_to
    if not round_to.isdecimal() or int(round_to) < 1:
        raise PlanError(
            f"--round-to {round_to}: give a whole number, at least 1, or 'auto': multiples of 16, "
            "or of 8, 4 or 2 where layers are narrow; for a target of latency as measured"
        )
    return int(round_to)


def floors_from_options(
    target: Target, round_to: str | None, min_channels: int | None, by_rule: bool
) -> dict[str, Any]:
    """The keywords of selections from --round-to and --min-channels, where they are given.

    Fewer multiply-adds are to be faster, so widths are rounded unless a rule is to choose them.
    """
    if round_to is None and target.unit == "macs" and not by_rule:
        round_to = "auto"
    given = {"round_to": step_from_option(round_to), "min_channels": min_channels}
    return {name: value for name, value in given.items() if value is not None}


def plan_for(
    net: nn.Module,
    graph: ChannelGraph,
    left: ChannelGraph,
    scores: Scores,
    example: Tensor,
    target: Target,
    rule: selection.Rule,
    setting: LatencySetting,
    damage: DamageTable | None = None,
    **floors: Any,
) -> tuple[PruningPlan, LatencyPlan | None]:
    """The plan that meets the target, and the measurement if the target is latency.

    Widths are chosen by the rule, or by measured damage if there is a table of it. The target is of
    `graph`; `left` is the graph that can be pruned: the same, or one that keeps more groups.
    """
    share = target.share_of(_whole(net, graph, example, target, setting))
    if target.unit == "latency":
        done = to_latency(
            net, left, scores, example, share, rule=rule, damage=damage, **vars(setting), **floors
        )
        return done.plan, done
    share = share_of_groups_left(share, target.unit, graph, left)
    if floors.get("round_to") == "auto":
        floors["round_to"] = width_step(left, share, target.unit, floors.get("min_channels", 1))
    if damage is not None:
        return selection.least_damage(damage, left, share, target.unit, **floors), None
    return selection.to_target(scores, left, share, target.unit, rule, **floors), None


def _whole(
    net: nn.Module, graph: ChannelGraph, example: Tensor, target: Target, setting: LatencySetting
) -> float:
    """How much of the unit the network has; seconds of latency are measured if they are needed."""
    if target.left is None:
        return 1.0
    if target.unit == "latency":
        return whole_latency(net, example, setting).median
    return amount(graph, target.unit)


def latency_sentence(found: Mapping[str, Any]) -> str:
    """The measurement of a plan in one sentence."""
    text = (
        f"latency ({found['runtime']}, batch {found['batch']}, threads {found['threads']}): "
        f"{found['before_s'] * 1e3:.3g} → {found['after_s'] * 1e3:.3g} ms, {found['removed']:.1%} "
        f"removed; widths are multiples of {found['round_to']}; {found['attempts']} measured"
    )
    return text + (f"; but the machine was busy: {found['doubt']}" if found["doubt"] else "")
