"""`dafp.slim`: trace, score, select, rebuild, prune and verify in one call."""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from .calibration.inputs import IMAGES, first_batches, read_inputs
from .criteria.scores import Criterion, Scores
from .criteria.table import score_channels
from .errors import PlanError, VerificationError
from .graph.channel_graph import ChannelGraph
from .graph.group import Kept, some
from .graph.plan import PruningPlan
from .network.model_copy import in_float32
from .pruning.masking import mask
from .pruning.pruned_model import prune
from .recovery.damage import MEASURED_IMAGES, measure_damage, output_damage
from .recovery.reconstruction import MEMORY, reconstruct
from .recovery.reconstruction_report import Reconstruction, reconstruction_of
from .recovery.variance_compensation import compensate_variances
from .selection.amounts import amount
from .selection.damage_table import DamageTable
from .selection.expected_damage import expected_damage
from .selection.groups_left import scores_left, share_of_groups_left, table_left
from .selection.least_damage import least_damage
from .selection.rules import RoundTo, Rule, uniform
from .selection.target_value import Target
from .selection.targets import to_target
from .tracing import trace

DATA_CRITERION = "reconstruction_error"
DATA_FREE_CRITERION = "shift_aware"
_ATTRIBUTE = "_dafp_slim"
Progress = Callable[[str, int, int], None]  # name of the step, number, total
Widths = Callable[[ChannelGraph, Scores, DamageTable | None], PruningPlan]
_MAX_ROUNDS = 4  # a new plan has other widths, which may fail again
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SlimReport:
    """What `dafp.slim` did, and how much each step brought; damage is that of the outputs."""

    plan: PruningPlan
    criterion: str
    metric: str = ""  # what damage is; "" without data
    expected: float | None = None  # damage expected by the table of measured widths
    as_cut: float | None = None  # damage of the plan without rebuilding
    rebuilt: float | None = None  # damage after rebuilding
    table: DamageTable | None = None  # of measured or, without data, of expected damage
    reconstruction: Reconstruction | None = None
    failing: tuple[Kept, ...] = ()  # groups that are kept because verification fails without them

    @property
    def _widths(self) -> str:
        if self.table is None:
            return "a rule"
        return "measured damage" if self.metric else "expected damage"

    def __str__(self) -> str:
        lines = [f"channels by {self.criterion}, widths by {self._widths}"]
        if self.as_cut is not None and self.rebuilt is not None:
            lines.append(f"{self.metric}: {self.as_cut:.3g} as cut, {self.rebuilt:.3g} rebuilt")
        if self.expected is not None:
            lines.append(f"{self.metric} expected from single groups: {self.expected:.3g}")
        if self.failing:
            lines.append(failing_sentence(self))
        lines.append(str(self.plan))
        return "\n".join(lines)


def slim(
    model: nn.Module,
    example: Any,
    ratio: float | Target = 0.5,
    unit: str = "filters",
    criterion: str | Criterion | None = None,
    residual: str = "keep",
    data: Iterable[Any] | None = None,
    *,
    rule: Rule | None = None,
    keep: tuple[str, ...] = (),
    rules: dict[Any, Callable[..., Any]] | None = None,
    logits: bool = False,
    score: Callable[[nn.Module], float] | None = None,
    fast: bool = False,
    table: DamageTable | None = None,
    images: int = IMAGES,
    memory: int = MEMORY,
    min_channels: int = 1,
    round_to: RoundTo = 1,
    seed: int = 0,
    progress: Progress = lambda step, number, total: None,
) -> nn.Module:
    """Make a model smaller in one call: return a verified model without `ratio` of `unit`.

    With data, channels are chosen by elimination (`criteria.reconstruction_error`), widths by
    measured damage (`recovery.measure_damage`), and weights are rebuilt (`reconstruct`); no labels
    and no training are needed. Without data, channels are chosen by `criteria.shift_aware`, widths
    by expected damage (`selection.expected_damage`), and the means and variances of removed
    channels are compensated.
    `dafp.slim_report(small)` returns what was done.

    Args:
        model: the network; it is not changed.
        example: an input of the network. A tuple is passed as `model(*example)`, a dict as
            `model(**example)`.
        ratio: the share of `unit` to remove, between 0 and 1; or a `dafp.selection.Target`, which
            has its own unit: `Target("macs", left=2e9)`.
        unit: what `ratio` is a share of: `"filters"`, `"params"` or `"macs"`.
        criterion: the name of a criterion, or a function of model and graph.
        residual: `"keep"` leaves residual streams whole, `"couple"` prunes them jointly.
        data: calibration data: batches of inputs, or of (input, target) pairs. A few hundred
            images are usual.
        rule: choose widths by this rule of `dafp.selection` instead.
        keep: layers (or patterns) not to prune, as in `dafp.trace`.
        rules: rules of custom layers, as in `dafp.trace`.
        logits: the first output is logits; see `dafp.recovery.measure_damage`.
        score: function of a model, higher is better; see `dafp.recovery.measure_damage`.
        fast: do not measure widths; remove the same share of every layer.
        table: choose widths by this table of measured damage, for example
            `slim_report(small).table` of a call with another target.
        images: number of images of `data` that are used at most.
        memory: bytes that activations may take; see `dafp.reconstruct`.
        min_channels: minimum number of channels that every group keeps.
        round_to: the number of kept channels is rounded up to a multiple of this; `"auto"`: of 8.
        seed: seed of the samples.
        progress: called with (step, number, total).

    Returns:
        A new, smaller model of the same class.

    Examples:
        >>> model = dafp.models.build("vgg11", width=0.25)
        >>> small = dafp.slim(model, torch.zeros(1, 3, 32, 32), ratio=0.5)
        >>> plan = dafp.plan_of(small)
        >>> sum(plan.sizes.values()), sum(len(kept) for kept in plan.keep.values())
        (688, 344)
    """
    graph = trace(model, example, residual=residual, keep=keep, rules=rules)
    if isinstance(ratio, Target):
        unit, ratio = ratio.unit, _share(ratio, graph)
    floors: dict[str, Any] = {"min_channels": min_channels, "round_to": round_to}
    if data is None and (fast or logits or score is not None or table is not None):
        raise PlanError("fast, logits, score and table concern calibration data: give data=batches")

    def widths(left: ChannelGraph, scores: Scores, table: DamageTable | None) -> PruningPlan:
        share = share_of_groups_left(ratio, unit, graph, left)
        if table is None:
            return to_target(scores, left, share, unit, rule or uniform, **floors)
        return least_damage(table, left, share, unit, **floors)

    if data is None:
        small = prune_without_data(model, graph, widths, criterion=criterion, expect=rule is None)
    else:
        small = prune_with_data(
            model, graph, data, widths, criterion=criterion, measure=not fast and rule is None,
            table=table, logits=logits, score=score, images=images, memory=memory, seed=seed,
            progress=progress,
        )  # fmt: skip
    if slim_report(small).failing:
        _log.warning(failing_sentence(slim_report(small)))
    return small


def prune_without_data(
    model: nn.Module,
    graph: ChannelGraph,
    widths: Widths,
    *,
    criterion: str | Criterion | None = None,
    expect: bool = True,
    compensate: bool = True,
) -> nn.Module:
    """Score channels, choose widths by a function, compensate means and variances, and prune.

    widths: function of the graph, of the scores, and of the table of expected damage, which is None
    unless `expect` is set. If groups fail the verification, it is called again, with a graph that
    keeps them.
    """
    scores = score_channels(criterion or DATA_FREE_CRITERION, model, graph)
    table = expected_damage(graph, scores) if expect else None

    def attempt(graph: ChannelGraph) -> nn.Module:
        plan = widths(graph, scores_left(scores, graph), table_left(table, graph))
        whole = compensate_variances(model, graph, plan) if compensate else model
        small = prune(whole, graph, plan, compensate)
        report = SlimReport(plan, _name(criterion, DATA_FREE_CRITERION), table=table)
        return _with_report(small, report)

    return _without_failing_groups(attempt, graph)


def prune_with_data(
    model: nn.Module,
    graph: ChannelGraph,
    data: Iterable[Any],
    widths: Widths,
    *,
    criterion: str | Criterion | None = None,
    measure: bool = True,
    table: DamageTable | None = None,
    logits: bool = False,
    score: Callable[[nn.Module], float] | None = None,
    images: int = IMAGES,
    memory: int = MEMORY,
    seed: int = 0,
    progress: Progress = lambda step, number, total: None,
) -> nn.Module:
    """Score channels on data, choose widths by a function, rebuild the weights and prune.

    widths: function of the graph, of the scores, and of the table of measured damage, which is None
    unless `measure` is set; it may be called again, as in `prune_without_data`. table: an earlier
    measurement of the same network.
    """
    given = first_batches(model, data, "slim", images)
    inputs = read_inputs(model, given, "slim", images)
    progress("scores", 0, 1)
    scores = score_channels(criterion or DATA_CRITERION, model, graph, given)
    if not measure:
        table = None
    elif table is None:
        table = measure_damage(
            model, graph, scores, given, logits=logits, score=score, images=images,
            done=lambda number, total: progress("widths", number, total),
        )  # fmt: skip
    damage = output_damage(in_float32(model), inputs.at_most(MEASURED_IMAGES), logits)

    def attempt(graph: ChannelGraph) -> nn.Module:
        left = table_left(table, graph)
        plan = widths(graph, scores_left(scores, graph), left)
        progress("rebuilding", 0, 1)
        rebuilt = reconstruct(model, graph, plan, given, images=images, memory=memory, seed=seed)
        progress("verifying", 0, 1)
        small = prune(rebuilt, graph, plan)
        report = SlimReport(
            plan,
            _name(criterion, DATA_CRITERION),
            "KL divergence" if logits else "relative squared error",
            None if left is None or score is not None else _expected(left, plan),
            damage(in_float32(mask(model, graph, plan))),
            damage(in_float32(small)),
            table,
            reconstruction_of(rebuilt),
        )
        return _with_report(small, report)

    return _without_failing_groups(attempt, graph)


def _without_failing_groups(
    attempt: Callable[[ChannelGraph], nn.Module], graph: ChannelGraph
) -> nn.Module:
    """What `attempt` returns; if groups fail the verification, it is called again without them."""
    left, rounds = graph, 0
    while True:
        try:
            small = attempt(left)
        except VerificationError as error:
            rounds += 1
            if not isinstance(error.graph, ChannelGraph) or rounds == _MAX_ROUNDS:
                raise
            left = error.graph
        else:
            failing = left.kept[len(graph.kept) :]
            return _with_report(small, replace(slim_report(small), failing=failing))


def failing_sentence(report: SlimReport) -> str:
    """The groups that are kept because verification fails without them, in one sentence."""
    names = some([kept.name for kept in report.failing])
    number = len(report.failing)
    what, them = ("1 group is", "it") if number == 1 else (f"{number} groups are", "them")
    return (
        f"{what} kept whole, because verification failed with {them} pruned: {names}; the other "
        "groups meet the target"
    )


def _share(target: Target, graph: ChannelGraph) -> float:
    """The share of a target, of the network that was traced."""
    if target.unit == "latency":
        raise PlanError(
            "slim removes filters, params or macs; dafp.latency.to_latency makes a plan for latency"
        )
    return target.share_of(amount(graph, target.unit))


def slim_report(model: nn.Module) -> SlimReport:
    """What `dafp.slim` did to make this model.

    Args:
        model: a result of `dafp.slim`

    Returns:
        The plan, the damage of the outputs as cut and rebuilt, and the measured widths.
    """
    report = vars(model).get(_ATTRIBUTE)
    if not isinstance(report, SlimReport):
        raise PlanError("this model is not a result of dafp.slim")
    return report


def _with_report(model: nn.Module, report: SlimReport) -> nn.Module:
    vars(model)[_ATTRIBUTE] = report
    return model


def _name(criterion: str | Criterion | None, default: str) -> str:
    if criterion is None:
        return default
    return criterion if isinstance(criterion, str) else getattr(criterion, "__name__", "a function")


def _expected(table: DamageTable, plan: PruningPlan) -> float:
    """The sum of the damages of all groups, each pruned alone to its width."""
    return sum(entry.at(entry.size - len(plan.keep[entry.names[0]])) for entry in table.groups)
