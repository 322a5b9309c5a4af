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


@dataclass(frozen=True)
class Aim:
    """A share of something that shall go."""

    share: float
    unit: str


@dataclass(frozen=True)
class Setting:
    """How latency is measured."""

    runtime: str
    batch: int
    threads: int


def asked(target: str | None, ratio: float | None, unit: str | None) -> Aim:
    """What --target says, or --ratio with --unit; both would say it twice."""
    if target is None:
        return Aim(0.5 if ratio is None else ratio, unit or "filters")
    if ratio is not None or unit is not None:
        raise PlanError(
            f"--target {target} says both share and unit; leave --ratio and --unit out, or give "
            "these instead of --target"
        )
    return parsed(target)


def parsed(text: str) -> Aim:
    """latency=0.5 as a value."""
    unit, _, share = text.partition("=")
    try:
        aim = Aim(float(share), unit)
    except ValueError:
        aim = Aim(0.0, "")
    if aim.unit not in TARGET_UNITS:
        raise PlanError(
            f"--target {text!r} is no target; write UNIT=SHARE with a unit of "
            f"{', '.join(TARGET_UNITS)} and a share between 0 and 1, e.g. latency=0.5"
        )
    return aim


def chosen(
    net: nn.Module,
    graph: ChannelGraph,
    scores: Scores,
    example: Tensor,
    aim: Aim,
    rule: selection.Rule,
    setting: Setting,
) -> tuple[PruningPlan, LatencyPlan | None]:
    """The plan that meets the aim, and for latency what was measured."""
    if aim.unit != "latency":
        return selection.to_target(scores, graph, aim.share, aim.unit, rule), None
    done = to_latency(net, graph, scores, example, aim.share, rule=rule, **vars(setting))
    return done.plan, done


def told(done: LatencyPlan) -> dict[str, Any]:
    """What was measured, for --json."""
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


def sentence(done: LatencyPlan, setting: Setting) -> str:
    """What was measured, for people."""
    before, after = (t.median * 1e3 for t in (done.chosen.before, done.chosen.after))
    text = (
        f"latency ({setting.runtime}, batch {setting.batch}, threads {setting.threads}): "
        f"{before:.3g} → {after:.3g} ms, {done.removed:.1%} removed; widths are multiples of "
        f"{done.round_to}; {len(done.attempts)} measured"
    )
    doubt = done.chosen.after.doubt
    return text + (f"; but the machine was busy: {doubt}" if doubt else "")
