"""The option `--target UNIT=SHARE` of `dafp prune`, and the plan that meets it."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from .. import selection
from ..choices import TARGET_UNITS
from ..criteria.scores import Scores
from ..errors import PlanError
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..latency.target import LatencyPlan, to_latency
from ..selection.damage_table import DamageTable


@dataclass(frozen=True)
class Target:
    """The share of a unit to remove."""

    share: float
    unit: str


@dataclass(frozen=True)
class LatencySetting:
    """How latency is measured."""

    runtime: str
    batch: int
    threads: int


def target_from_options(target: str | None, ratio: float | None, unit: str | None) -> Target:
    """The target from --target, or from --ratio and --unit; both together are refused."""
    if target is None:
        return Target(0.5 if ratio is None else ratio, unit or "filters")
    if ratio is not None or unit is not None:
        raise PlanError(
            f"--target {target} gives both share and unit; leave --ratio and --unit out, or give "
            "them instead of --target"
        )
    return parse_target(target)


def parse_target(text: str) -> Target:
    """Parse a text such as latency=0.5."""
    unit, _, share = text.partition("=")
    try:
        target = Target(float(share), unit)
    except ValueError:
        target = Target(0.0, "")
    if target.unit not in TARGET_UNITS:
        raise PlanError(
            f"--target {text!r} is not a target; write UNIT=SHARE with a unit of "
            f"{', '.join(TARGET_UNITS)} and a share between 0 and 1, e.g. latency=0.5"
        )
    return target


def plan_for(
    net: nn.Module,
    graph: ChannelGraph,
    scores: Scores,
    example: Tensor,
    target: Target,
    rule: selection.Rule,
    setting: LatencySetting,
    damage: DamageTable | None = None,
) -> tuple[PruningPlan, LatencyPlan | None]:
    """The plan that meets the target, and the measurement if the target is latency.

    Widths are chosen by the rule, or by measured damage if there is a table of it.
    """
    if target.unit == "latency":
        done = to_latency(
            net, graph, scores, example, target.share, rule=rule, damage=damage, **vars(setting)
        )
        return done.plan, done
    if damage is not None:
        return selection.least_damage(damage, graph, target.share, target.unit), None
    return selection.to_target(scores, graph, target.share, target.unit, rule), None


def latency_values(done: LatencyPlan) -> dict[str, Any]:
    """The measurement for --json."""
    speedup = done.chosen.speedup
    return {
        "removed": done.removed,
        "before_s": done.chosen.before.median,
        "after_s": done.chosen.after.median,
        "speedup": speedup.value,
        "speedup_95": [speedup.low, speedup.high],
        "round_to": done.round_to,
        "attempts": len(done.attempts),
        "points_measured": done.measured,
        "doubt": done.chosen.after.doubt,
    }


def latency_sentence(done: LatencyPlan, setting: LatencySetting) -> str:
    """The measurement in one sentence."""
    before, after = (t.median * 1e3 for t in (done.chosen.before, done.chosen.after))
    text = (
        f"latency ({setting.runtime}, batch {setting.batch}, threads {setting.threads}): "
        f"{before:.3g} → {after:.3g} ms, {done.removed:.1%} removed; widths are multiples of "
        f"{done.round_to}; {len(done.attempts)} measured"
    )
    doubt = done.chosen.after.doubt
    return text + (f"; but the machine was busy: {doubt}" if doubt else "")
