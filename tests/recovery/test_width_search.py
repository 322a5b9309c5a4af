"""The search of widths by evolution: against all width vectors, and its parts by hand."""

import itertools

import pytest
import torch

import dafp
from dafp.errors import PlanError, TargetError
from dafp.recovery.width_search import fronts, knee, manhattan, ranked, rule_of
from dafp.selection import removed_share
from support.training import graph_of, images, tiny_net


def setting(widths=(6, 8)):
    net = tiny_net(widths=widths).eval()
    graph = graph_of(net)
    x, y = images()

    @torch.no_grad()
    def loss(model):
        return float(torch.nn.functional.cross_entropy(model(x), y))

    return net, graph, dafp.criteria.l1_norm(net, graph), loss


def all_plans(graph, scores, left):
    """Every width vector with this many channels in all, the highest scores kept."""
    sizes = [range(1, group.size + 1) for group in graph.groups]
    for widths in itertools.product(*sizes):
        if sum(widths) == left:
            keep = {
                group.name: tuple(sorted(scores[group.name].topk(width).indices.tolist()))
                for group, width in zip(graph.groups, widths, strict=True)
            }
            yield graph.resolve(dafp.PruningPlan(keep))


def test_the_result_is_the_best_of_all_width_vectors():
    net, graph, scores, loss = setting()
    plans = list(all_plans(graph, scores, left=7))
    assert len(plans) == 6
    losses = [loss(dafp.mask(net, graph, plan)) for plan in plans]
    best = plans[losses.index(min(losses))]
    found = dafp.recovery.search_widths(net, graph, scores, loss, 0.5, second=None)
    assert found.keep == best.keep
    assert removed_share(graph, found, "filters") == 0.5


def test_with_two_objectives_the_result_is_the_knee_of_all_width_vectors():
    net, graph, scores, _ = setting()

    def loss(model):
        """A user's own score: the more channels the second convolution receives, the better."""
        return 1 / int((model[3].weight.abs().sum((0, 2, 3)) > 0).sum())

    plans = list(all_plans(graph, scores, left=7))
    points = [
        (loss(dafp.mask(net, graph, plan)), 1 - removed_share(graph, plan, "macs"))
        for plan in plans
    ]
    front = [
        place for place, (a, b) in enumerate(points)
        if not any(c <= a and d <= b and (c, d) != (a, b) for c, d in points)
    ]  # fmt: skip
    low = [min(points[p][m] for p in front) for m in range(2)]
    high = [max(points[p][m] for p in front) for m in range(2)]
    distance = {
        p: sum((points[p][m] - low[m]) / max(high[m] - low[m], 1e-30) for m in range(2))
        for p in front
    }
    best = plans[min(front, key=distance.__getitem__)]
    assert len(front) == 4
    assert dafp.recovery.search_widths(net, graph, scores, loss, 0.5).keep == best.keep


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
def test_every_individual_meets_the_target_and_equal_seeds_agree(unit):
    net, graph, scores, loss = setting(widths=(12, 16))
    seen = []

    def watched(model):
        alive = [int((model[n].weight.abs().sum((0, 2, 3)) > 0).sum()) for n in (3,)]
        seen.append((*alive, int((model[8].weight.abs().sum(0) > 0).sum())))
        return loss(model)

    options = {"population": 6, "generations": 2, "seed": 3}
    plan = dafp.recovery.search_widths(net, graph, scores, watched, 0.5, unit, **options)
    assert removed_share(graph, plan, unit) == pytest.approx(0.5, abs=0.05)
    assert len(set(seen)) == len(seen) >= 4  # equal plans are scored once
    for a, b in seen:
        keep = {"0": tuple(range(a)), "3": tuple(range(b))}
        share = removed_share(graph, graph.resolve(dafp.PruningPlan(keep)), unit)
        assert share == pytest.approx(0.5, abs=0.05)
    again = dafp.recovery.search_widths(net, graph, scores, loss, 0.5, unit, **options)
    assert again.keep == plan.keep


def test_statistics_are_recalibrated_for_every_individual_and_the_network_does_not_change():
    net, graph, scores, _ = setting()
    before = {name: value.clone() for name, value in net.state_dict().items()}
    x, _ = images()
    seen = []

    def loss(model):
        seen.append(model[4].running_mean.clone())
        return float(len(seen))

    dafp.recovery.search_widths(
        net, graph, scores, loss, 0.5, batches=[x], population=4, generations=1
    )
    assert len(seen) >= 3
    assert not any(torch.allclose(mean, before["4.running_mean"]) for mean in seen)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


def test_fronts_and_the_knee_by_hand():
    points = [(0.0, 10.0), (1.0, 4.0), (4.0, 3.0), (10.0, 0.0), (2.0, 5.0), (11.0, 11.0)]
    assert fronts(points) == [[0, 1, 2, 3], [4], [5]]
    first = points[:4]
    assert manhattan(first) == pytest.approx([1.0, 0.5, 0.7, 1.0])
    assert knee(first) == 1
    assert sorted(range(6), key=ranked(points).__getitem__)[:3] == [1, 2, 0]
    assert manhattan([(1.0, 5.0), (1.0, 3.0)]) == [1.0, 0.0]


def test_exponents_say_how_much_a_group_loses():
    """At strength 0.5: 16 · 0.5², 16 · 0.5 and 16 · 0.5^0.5 channels are left."""
    scores = {name: torch.arange(16.0) for name in "abc"}
    plan = rule_of({"a": 2.0, "b": 1.0, "c": 0.5})(scores, 0.5)
    assert [len(plan.keep[name]) for name in "abc"] == [4, 8, 11]
    assert plan.keep["a"] == (12, 13, 14, 15)
    rounded = rule_of({"a": 2.0, "b": 1.0, "c": 0.5})(scores, 0.5, min_channels=6, round_to=4)
    assert [len(rounded.keep[name]) for name in "abc"] == [8, 8, 12]


def test_impossible_searches_are_refused():
    net, graph, scores, loss = setting()
    search = dafp.recovery.search_widths
    with pytest.raises(PlanError, match="population=2 and generations=10: the search needs"):
        search(net, graph, scores, loss, population=2)
    with pytest.raises(PlanError, match="second='latency' is not known"):
        search(net, graph, scores, loss, second="latency")
    with pytest.raises(PlanError, match="is nan; it gets a model and must return a finite number"):
        search(net, graph, scores, lambda model: float("nan"))
    with pytest.raises(TargetError, match="cannot"):
        search(net, graph, scores, loss, 0.99)
