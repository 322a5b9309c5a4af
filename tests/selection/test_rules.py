"""From scores to plans: who stays, how a target is met, and what a plan costs."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import dafp
from dafp import ChannelGraph, PruningPlan, criteria
from dafp.errors import PlanError
from dafp.models import build
from dafp.selection import global_ranking, local_threshold, removed_share, to_target, uniform
from dafp.selection.targets import reach
from support.training import with_random_bn

RULES = pytest.mark.parametrize(
    "rule", [local_threshold, global_ranking, uniform], ids=lambda rule: rule.__name__
)
SCORES = {
    "a": torch.tensor([3.0, 1.0, 2.0, 1.0, 4.0]),
    "b": torch.tensor([0.5, 8.0, 0.25, 2.0]),
}


class Halves(nn.Module):
    """The halves of chunk(2) go to readers of their own: they must stay equally wide."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, width, 3)
        self.left = nn.Conv2d(width // 2, 5, 1)
        self.right = nn.Conv2d(width // 2, 6, 1)
        self.fc = nn.Linear(11, 3)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.conv(x).relu().chunk(2, 1)
        return self.fc(torch.cat([self.left(a), self.right(b)], 1).mean((2, 3)))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "vgg11": (lambda: build("vgg11", width=0.25), torch.randn(1, 3, 32, 32)),
    "preresnet20": (lambda: build("preresnet20", width=0.5), torch.randn(1, 3, 16, 16)),
    "resnet20": (lambda: build("resnet20", width=0.5), torch.randn(1, 3, 16, 16)),
}
_traced: dict[str, tuple[nn.Module, ChannelGraph, Tensor]] = {}


def traced(name: str) -> tuple[nn.Module, ChannelGraph, Tensor]:
    """Each network is traced once for all tests."""
    if name not in _traced:
        make, x = NETWORKS[name]
        torch.manual_seed(0)
        model = with_random_bn(make()).eval()
        _traced[name] = model, dafp.trace(model, x), x
    return _traced[name]


# ---- the three rules -----------------------------------------------------------------------------


def test_local_threshold_drops_what_is_at_or_below_p_times_the_groups_own_maximum():
    plan = local_threshold(SCORES, p=0.25)
    assert plan.keep == {"a": (0, 2, 4), "b": (1,)}  # 1.0 ≤ 0.25·4 goes, and 2.0 ≤ 0.25·8


def test_local_threshold_keeps_what_is_just_above():
    plan = local_threshold({"a": torch.tensor([1.0, 1.0 + 1e-6, 2.0])}, p=0.5)
    assert plan.keep == {"a": (1, 2)}


def test_local_threshold_never_empties_a_group_of_zeros():
    plan = local_threshold({"a": torch.zeros(4)}, p=0.5)
    assert plan.keep == {"a": (3,)}  # ties by lower index


@pytest.mark.parametrize(("ratio", "left"), [(0.1, 9), (0.25, 8), (0.3, 7), (0.44, 6), (0.96, 1)])
def test_uniform_drops_the_rounded_share_of_every_group(ratio, left):
    scores = {"a": torch.rand(10), "b": torch.rand(10)}
    plan = uniform(scores, ratio)
    assert [len(kept) for kept in plan.keep.values()] == [left, left]


def test_uniform_drops_the_lowest_and_ties_by_lower_index():
    assert uniform({"a": torch.tensor([2.0, 1.0, 1.0, 1.0, 3.0])}, 0.4).keep == {"a": (0, 3, 4)}


def test_global_ranking_drops_the_lowest_of_all_wherever_they_are():
    plan = global_ranking(SCORES, ratio=4 / 9)
    assert plan.keep == {"a": (0, 2, 4), "b": (1, 3)}


@pytest.mark.parametrize("ratio", [0.1, 0.33, 0.5, 0.77])
def test_global_ranking_drops_the_rounded_share_of_all_channels(ratio):
    scores = {"a": torch.rand(40), "b": torch.rand(60)}
    left = sum(len(kept) for kept in global_ranking(scores, ratio).keep.values())
    assert left == 100 - round(ratio * 100)


def test_global_ranking_breaks_ties_in_the_order_of_groups_and_indices():
    plan = global_ranking({"a": torch.ones(3), "b": torch.ones(3)}, 0.5, min_channels=0)
    assert plan.keep == {"a": (), "b": (0, 1, 2)}


@RULES
@pytest.mark.parametrize("floor", [0, 1, 3])
def test_every_rule_respects_the_floor(rule, floor):
    plan = rule({"a": torch.zeros(8), "b": torch.rand(8) + 1}, 0.9, min_channels=floor)
    assert min(len(kept) for kept in plan.keep.values()) >= floor


@RULES
def test_a_floor_above_the_width_keeps_the_group_whole(rule):
    assert rule({"a": torch.zeros(3)}, 0.9, min_channels=8).keep == {"a": (0, 1, 2)}


@RULES
@pytest.mark.parametrize("step", [2, 4, 8])
def test_every_rule_rounds_widths_up_to_a_multiple(rule, step):
    plan = rule({"a": torch.rand(32), "b": torch.rand(10)}, 0.6, round_to=step)
    for name, size in (("a", 32), ("b", 10)):
        left = len(plan.keep[name])
        assert left % step == 0 or left == size


@RULES
def test_rules_keep_the_highest_scores(rule):
    scores = {"a": torch.rand(20)}
    kept = list(rule(scores, 0.5).keep["a"])
    gone = [c for c in range(20) if c not in kept]
    assert scores["a"][kept].min() >= scores["a"][gone].max()


@RULES
def test_rules_leave_the_scores_alone(rule):
    scores = {name: score.clone() for name, score in SCORES.items()}
    rule(scores, 0.5)
    assert all(torch.equal(scores[name], SCORES[name]) for name in SCORES)


# ---- targets -------------------------------------------------------------------------------------


@RULES
@pytest.mark.parametrize("target", [0.13, 0.5, 0.7])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_share_of_filters_is_met_to_the_filter(name, target, rule):
    model, graph, _ = traced(name)
    scores = criteria.dependency_aware(model, graph)
    plan = to_target(scores, graph, target=target, rule=rule)
    sizes = {g.name: g.size for g in graph.groups if g.kind == "filter"}
    removed = sum(size - len(plan.keep[group]) for group, size in sizes.items())
    assert sum(sizes.values()) == graph.filters
    assert abs(removed - target * graph.filters) <= 0.5


@RULES
@pytest.mark.parametrize("target", [0.3, 0.6])
@pytest.mark.parametrize("unit", ["params", "macs"])
@pytest.mark.parametrize("name", NETWORKS)
def test_a_share_of_the_cost_is_met_to_the_nearest_channel(name, unit, target, rule):
    model, graph, _ = traced(name)
    scores = criteria.dependency_aware(model, graph)
    plan = to_target(scores, graph, target=target, unit=unit, rule=rule)
    whole, left = getattr(plan.before, unit), getattr(plan.after, unit)
    assert abs((1 - left / whole) - target) * whole <= dearest_channel(graph, unit) / 2


def dearest_channel(graph: ChannelGraph, unit: str) -> int:
    """What the most expensive single channel of the network costs."""
    whole = [torch.ones(g.size, dtype=torch.bool) for g in graph.groups]
    costs = []
    for number in range(len(graph.groups)):
        flags = [flag.clone() for flag in whole]
        flags[number][0] = False
        costs.append(getattr(graph.predict(whole), unit) - getattr(graph.predict(flags), unit))
    return max(costs)


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
@pytest.mark.parametrize("name", NETWORKS)
def test_the_predicted_cost_is_exactly_the_counted_cost_of_the_pruned_model(name, unit):
    model, graph, x = traced(name)
    plan = to_target(criteria.l1_norm(model, graph), graph, target=0.4, unit=unit)
    assert plan.before == dafp.cost(model, x)
    assert plan.after == dafp.cost(dafp.prune(model, graph, plan), x)


class Query(nn.Module):
    """Hands a view of its own parameter to a layer, and looks at its numbers if `peeks`."""

    def __init__(self, peeks: bool) -> None:
        super().__init__()
        self.peeks = peeks
        self.conv, self.mix = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(4, 8, 1)
        self.query = nn.Parameter(torch.randn(1, 4, 6, 6))

    def forward(self, x: Tensor) -> Tensor:
        scale = float(x.mean()) if self.peeks else 1.0
        queries = self.mix(self.query.expand(len(x), -1, -1, -1))
        return self.conv(x.flatten(1).unflatten(1, (3, 6, 6))) * queries * scale


@pytest.mark.parametrize("peeks", [False, True])
def test_a_parameter_that_is_given_to_a_layer_is_counted(peeks):
    model, x = Query(peeks), torch.randn(2, 3, 6, 6, requires_grad=True)
    assert dafp.cost(model, x).macs == 36 * 8 * (27 + 4)
    assert x.requires_grad
    assert all(p.requires_grad for p in model.parameters())


@RULES
def test_the_predicted_cost_of_any_rules_plan_is_the_counted_cost(rule):
    model, graph, x = traced("preresnet20")
    plan = graph.resolve(rule(criteria.dependency_aware(model, graph), 0.3))
    assert plan.after == dafp.cost(dafp.prune(model, graph, plan), x)


def test_the_cost_does_not_depend_on_the_batch_of_the_example():
    model, graph, x = traced("resnet20")
    assert dafp.cost(model, torch.cat([x] * 3)) == dafp.cost(model, x)
    assert dafp.trace(model, torch.cat([x] * 3)).resolve(PruningPlan({})).after == (
        graph.resolve(PruningPlan({})).after
    )


@RULES
def test_ties_do_not_stop_a_target(rule):
    _, graph, _ = traced("resnet20")
    scores = {g.name: torch.ones(g.size) for g in graph.groups}
    plan = to_target(scores, graph, target=0.37, rule=rule)
    assert abs(removed_share(graph, plan, "filters") - 0.37) * graph.filters <= 0.5


def test_to_target_drops_the_lowest_of_each_group_first():
    model, graph, _ = traced("vgg11")
    scores = criteria.l2_norm(model, graph)
    plan = to_target(scores, graph, target=0.5)
    for name, kept in plan.keep.items():
        gone = [c for c in range(scores[name].numel()) if c not in set(kept)]
        if gone and kept:
            assert scores[name][list(kept)].min() >= scores[name][gone].max()


def test_to_target_is_the_same_every_time():
    model, graph, _ = traced("preresnet20")
    scores = criteria.dependency_aware(model, graph)
    assert to_target(scores, graph, unit="macs") == to_target(scores, graph, unit="macs")


def test_to_target_respects_floor_and_rounding():
    model, graph, _ = traced("vgg11")
    scores = criteria.l1_norm(model, graph)
    plan = to_target(scores, graph, target=0.5, min_channels=6, round_to=8)
    assert all(len(kept) >= 6 for kept in plan.keep.values())
    assert all(len(kept) % 8 == 0 for kept in plan.keep.values())
    assert abs(removed_share(graph, plan, "filters") - 0.5) < 0.1


@pytest.mark.parametrize("unit", ["params", "macs"])
def test_weighing_cost_meets_the_target_and_gives_up_less_score(unit):
    model, graph, _ = traced("vgg11")
    scores = criteria.l2_norm(model, graph)
    plans = [
        to_target(scores, graph, target=0.5, unit=unit, rule=global_ranking, weigh_cost=weigh)
        for weigh in (False, True)
    ]
    lost = [
        sum(float(s.sum() - s[list(plan.keep[name])].sum()) for name, s in scores.items())
        for plan in plans
    ]
    assert all(abs(removed_share(graph, plan, unit) - 0.5) < 0.005 for plan in plans)
    assert lost[1] < lost[0]


def test_weighing_cost_needs_a_rule_that_compares_layers():
    model, graph, _ = traced("vgg11")
    with pytest.raises(dafp.errors.PlanError, match="global_ranking"):
        to_target(criteria.l2_norm(model, graph), graph, unit="macs", weigh_cost=True)


def test_the_share_of_filters_counts_filter_groups_only():
    _, graph, _ = traced("preresnet20")
    kinds = {g.kind: g for g in graph.groups}
    assert set(kinds) == {"filter", "selection"}
    chosen = kinds["selection"]
    plan = PruningPlan({chosen.name: (0,)})
    assert removed_share(graph, plan, "filters") == 0
    assert removed_share(graph, plan, "params") > 0


def test_the_inner_filters_of_every_block_of_a_preresnet_can_be_pruned():
    _, graph, _ = traced("preresnet20")
    inner = {f"stages.{s}.{b}.conv{c}" for s in range(3) for b in range(2) for c in (1, 2)}
    assert inner <= {g.name for g in graph.groups if g.kind == "filter"}


# ---- legal plans ---------------------------------------------------------------------------------


def halves(width: int = 12) -> tuple[nn.Module, ChannelGraph]:
    torch.manual_seed(0)
    model = Halves(width).eval()
    return model, dafp.trace(model, torch.randn(1, 3, 8, 8))


@pytest.mark.parametrize("width", [8, 12, 16])
@pytest.mark.parametrize("kept", [(2, 3), (3, 2), (1, 4), (4, 1), (2, 4)])
def test_resolve_brings_the_halves_of_a_split_into_balance(width, kept):
    model, graph = halves(width)
    names = [f"conv[0:{width // 2}]", f"conv[{width // 2}:{width}]"]
    plan = PruningPlan({name: tuple(range(k)) for name, k in zip(names, kept, strict=True)})
    legal = graph.resolve(plan)
    assert [len(legal.keep[name]) for name in names] == [max(kept)] * 2
    dafp.prune(model, graph, plan)


def test_resolve_brings_back_the_most_important_channels():
    _, graph = halves()
    left = torch.tensor([9.0, 8, 7, 6, 5, 4])
    right = torch.tensor([0.1, 0.9, 0.3, 5, 0.2, 0.4])
    scores = {"conv[0:6]": left, "conv[6:12]": right}
    plan = local_threshold(scores, p=0.7)
    assert [len(plan.keep[name]) for name in scores] == [3, 1]
    assert graph.resolve(plan).keep["conv[6:12]"] == (1, 3, 5)


def test_resolve_does_not_change_the_plan_it_is_given():
    _, graph = halves()
    plan = PruningPlan({"conv[0:6]": (0,)})
    before = copy.deepcopy(plan)
    graph.resolve(plan)
    assert plan == before


def test_resolve_names_every_group_and_predicts_the_cost():
    _, graph = halves()
    legal = graph.resolve(PruningPlan({}))
    assert {name: len(kept) for name, kept in legal.keep.items()} == {
        g.name: g.size for g in graph.groups
    }
    assert legal.before == legal.after


def test_resolving_twice_changes_nothing_more():
    _, graph = halves()
    once = graph.resolve(PruningPlan({"conv[0:6]": (0,), "conv[6:12]": (1, 2)}))
    assert graph.resolve(once) == once


def test_mask_and_prune_make_a_plan_legal_alike():
    model, graph = halves()
    plan = PruningPlan({"conv[0:6]": (0,), "conv[6:12]": (1, 2, 3)})
    x = torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(dafp.prune(model, graph, plan)(x), dafp.mask(model, graph, plan)(x))


def test_a_target_is_met_where_halves_must_be_balanced():
    model, graph = halves(16)
    plan = to_target(criteria.l1_norm(model, graph), graph, target=0.5)
    assert abs(removed_share(graph, plan, "filters") - 0.5) * graph.filters <= 1
    dafp.prune(model, graph, plan)


# ---- plans as values -----------------------------------------------------------------------------


def test_a_plan_goes_through_json_and_back():
    model, graph, _ = traced("preresnet20")
    plan = to_target(criteria.l1_norm(model, graph), graph)
    assert PruningPlan.from_json(plan.to_json()) == plan


def test_equal_plans_give_equal_text():
    plans = [
        PruningPlan({"a": (0, 1), "b": (2,)}, {"a": 3, "b": 4}),
        PruningPlan({"b": (2,), "a": (0, 1)}, {"b": 4, "a": 3}),
    ]
    assert plans[0].to_json() == plans[1].to_json()


def test_a_plan_that_is_not_yet_legal_means_the_same_after_json():
    _, graph = halves()
    scores = {
        "conv[0:6]": torch.tensor([9.0, 8, 7, 6, 5, 4]),
        "conv[6:12]": torch.tensor([0.1, 0.9, 0.3, 5, 0.2, 0.4]),
    }
    plan = local_threshold(scores, p=0.7)
    assert graph.resolve(PruningPlan.from_json(plan.to_json())) == graph.resolve(plan)


def test_a_plan_cannot_be_changed():
    plan = PruningPlan({"a": (0, 1)})
    with pytest.raises(AttributeError):
        plan.keep = {}


def test_a_printed_plan_shows_widths_and_predicted_cost():
    model, graph, x = traced("vgg11")
    plan = to_target(criteria.l1_norm(model, graph), graph)
    text = str(plan)
    group = graph.groups[0]
    after = dafp.cost(dafp.prune(model, graph, plan), x)
    assert f"{group.name}: {group.size} → {len(plan.keep[group.name])}" in text
    assert f"{after.params:,}" in text
    assert f"{after.macs:,}" in text


def test_a_plan_that_keeps_everything_says_so():
    assert str(PruningPlan({})) == "keeps everything"


@pytest.mark.parametrize("rule", [local_threshold, global_ranking, uniform])
def test_auto_rounds_widths_to_multiples_of_8(rule):
    scores = {"a": torch.arange(1.0, 41.0), "b": torch.arange(1.0, 65.0)}
    plan = rule(scores, 0.4, round_to="auto")
    assert plan.keep == rule(scores, 0.4, round_to=8).keep
    widths = [len(kept) for kept in plan.keep.values()]
    assert all(width % 8 == 0 for width in widths)
    assert sum(widths) < 104


@pytest.mark.parametrize("value", ["8", "automatic", 0, 2.0, None])
def test_a_width_step_that_is_none_is_refused_with_what_is_one(value):
    with pytest.raises(PlanError, match="must be a whole number, at least 1, or 'auto'"):
        uniform({"a": torch.arange(1.0, 41.0)}, 0.5, round_to=value)


def test_of_a_network_without_prunable_filters_nothing_can_be_removed():
    model = nn.Sequential(nn.Conv2d(3, 2, 3))
    graph = dafp.trace(model, torch.zeros(1, 3, 8, 8))
    assert (len(graph.groups), reach(graph, "filters")) == (0, 0.0)
    with pytest.raises(PlanError, match="no scores"):
        to_target({}, graph, 0.5)
