"""Networks small enough to prune by hand: scores, widths and outputs worked out on paper."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dafp
from dafp import PruningPlan, criteria, selection

torch.set_num_threads(1)
PIXEL = torch.ones(1, 1, 1, 1)


def weighed(layer: nn.Module, weight: Any, bias: Any = None) -> Any:
    """A layer with these numbers."""
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight, dtype=torch.float).view_as(layer.weight))
        if bias is not None:
            layer.bias.copy_(torch.tensor(bias, dtype=torch.float))
    return layer


def conv(weight: list[list[float]], bias: Any = None, **kwargs: Any) -> nn.Conv2d:
    """A 1×1 convolution: one row of weights per filter."""
    groups = kwargs.get("groups", 1)
    width, filters = len(weight[0]) * groups, len(weight)
    return weighed(nn.Conv2d(width, filters, 1, bias=bias is not None, **kwargs), weight, bias)


def norm(gamma: list[float], beta: list[float] | None = None) -> nn.BatchNorm2d:
    """γ·x + β: statistics 0 and 1, and an eps that float32 does not see beside 1."""
    return weighed(nn.BatchNorm2d(len(gamma), eps=1e-30), gamma, beta or [0] * len(gamma))


def first(filters: list[float]) -> nn.Conv2d:
    """Filters on an image of one channel."""
    return conv([[weight] for weight in filters])


def close(actual: Tensor, expected: Any, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(
        actual, torch.tensor(expected, dtype=torch.float), rtol=tolerance, atol=tolerance
    )


def at(model: nn.Module, value: float) -> list[float]:
    """The output of the network for an image of one pixel."""
    return model.eval()(value * PIXEL).flatten().tolist()


# ---- |γ| · ‖W‖ -----------------------------------------------------------------------------------


def chain() -> nn.Sequential:
    """γ = 2, −1, .5, consumed by columns (3,4), (0,1), (6,8) of norm 5, 1, 10: S = 10, 1, 5."""
    consumer = conv([[3, 0, 6], [4, 1, 8]])
    return nn.Sequential(
        first([1, 2, 3]), norm([2, -1, 0.5], [0, 1, 0]), nn.ReLU(), consumer
    ).eval()


def test_importance_is_the_scale_times_the_norm_of_the_weights_that_consume_it():
    model = chain()
    close(criteria.dependency_aware(model, dafp.trace(model, PIXEL))["0"], [10, 1, 5])


def test_mean_abs_divides_by_the_number_of_weights_instead():
    """mean|W| = 7/2, 1/2, 14/2, times |γ| = 2, 1, .5."""
    model = chain()
    graph = dafp.trace(model, PIXEL)
    close(criteria.dependency_aware(model, graph, norm="mean_abs")["0"], [7, 0.5, 3.5])


@pytest.mark.parametrize(
    ("p", "kept"), [(0.09, (0, 1, 2)), (0.1, (0, 2)), (0.49, (0, 2)), (0.5, (0,)), (0.9, (0,))]
)
def test_the_threshold_is_p_times_the_maximum_and_takes_what_lies_on_it(p, kept):
    """max S = 10; S = 10, 1, 5."""
    model = chain()
    scores = criteria.dependency_aware(model, dafp.trace(model, PIXEL))
    assert selection.local_threshold(scores, p).keep == {"0": kept}


def test_the_chain_without_its_weakest_channel_says_what_paper_and_pencil_say():
    """At 1: relu(2·1), relu(−1·2+1), relu(.5·3) = 2, 0, 1.5, so 3·2+6·1.5 = 15, 4·2+8·1.5 = 20.

    At −1: 0, 3, 0: only the channel that goes, whose voice was (0, 3).
    """
    model = chain()
    graph = dafp.trace(model, PIXEL)
    assert at(model, 1) == [15, 20]
    assert at(model, -1) == [0, 3]
    plan = selection.uniform(criteria.dependency_aware(model, graph), 1 / 3)
    small = dafp.prune(model, graph, plan)
    assert plan.keep == {"0": (0, 2)}
    assert at(small, 1) == [15, 20]
    assert at(small, -1) == [0, 0]


def test_the_chain_without_its_weakest_channel_has_the_weights_of_the_others():
    model = chain()
    graph = dafp.trace(model, PIXEL)
    small = dafp.prune(model, graph, PruningPlan({"0": (0, 2)}))
    assert small[0].weight.flatten().tolist() == [1, 3]
    assert small[1].weight.tolist() == [2, 0.5]
    assert small[3].weight.flatten(1).tolist() == [[3, 6], [4, 8]]
    assert (small[0].out_channels, small[1].num_features, small[3].in_channels) == (2, 2, 2)


def test_the_chain_costs_what_can_be_counted_on_fingers():
    """Whole: 3 + 3+3 + 6 = 15 weights, 3 + 6 = 9 multiply-adds. Two channels: 10 and 6."""
    model = chain()
    graph = dafp.trace(model, PIXEL)
    plan = graph.resolve(PruningPlan({"0": (0, 2)}))
    assert (plan.before.params, plan.before.macs) == (15, 9)
    assert (plan.after.params, plan.after.macs) == (10, 6)


# ---- the paper's example -------------------------------------------------------------------------


def paper_example() -> tuple[dafp.ChannelGraph, criteria.Scores]:
    """Equal consumers in each layer: S = 2·{.10, .01, .03, .15} and {1, 100, 2, 200}."""
    model = nn.Sequential(
        first([1, 1, 1, 1]), norm([0.10, 0.01, 0.03, 0.15]), nn.ReLU(),
        conv([[1] * 4] * 4), norm([1, 100, 2, 200]), nn.ReLU(), conv([[1] * 4]),
    ).eval()  # fmt: skip
    graph = dafp.trace(model, PIXEL)
    return graph, criteria.dependency_aware(model, graph)


def test_scores_of_the_papers_example():
    _, scores = paper_example()
    close(scores["0"], [0.20, 0.02, 0.06, 0.30])
    close(scores["3"], [1, 100, 2, 200])


@pytest.mark.parametrize("p", [0.2, 0.21, 0.3, 0.49])
def test_the_papers_example_keeps_two_of_each_layer(p):
    _, scores = paper_example()
    assert selection.local_threshold(scores, p).keep == {"0": (0, 3), "3": (1, 3)}


def test_the_papers_example_loses_the_100_at_one_half():
    _, scores = paper_example()
    assert selection.local_threshold(scores, 0.5).keep == {"0": (0, 3), "3": (3,)}


def test_the_papers_example_meets_its_target_of_one_half_in_the_same_way():
    graph, scores = paper_example()
    plan = selection.to_target(scores, graph, target=0.5)
    assert plan.keep == {"0": (0, 3), "3": (1, 3)}
    assert selection.removed_share(graph, plan, "filters") == 0.5


def test_a_global_ranking_takes_the_first_layer_of_the_papers_example_down_to_its_floor():
    _, scores = paper_example()
    assert selection.global_ranking(scores, 0.5).keep == {"0": (3,), "3": (0, 1, 2, 3)}


def test_ties_go_by_the_lower_index():
    scores = {"layer": torch.tensor([2.0, 1.0, 1.0, 1.0])}
    assert selection.uniform(scores, 0.5).keep == {"layer": (0, 3)}


# ---- consumers -----------------------------------------------------------------------------------


class TwoConsumers(nn.Module):
    """γ = 1, 2, 3; consumed by (3, 0, 1) and by (4, 1, 0)."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.norm = first([1, 1, 1]), norm([1, 2, -3])
        self.a, self.b = conv([[3, 0, 1]]), conv([[4, 1, 0]])

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.make(x)).relu()
        return torch.cat([self.a(x), self.b(x)], 1)


def test_several_consumers_count_by_the_root_of_the_sum_of_squares():
    """1·√(9+16), 2·√(0+1), 3·√(1+0)."""
    model = TwoConsumers().eval()
    graph = dafp.trace(model, PIXEL)
    close(criteria.dependency_aware(model, graph)["make"], [5, 2, 3])


def test_both_consumers_lose_the_channel():
    """At 1 the channels are 1, 2, 0: a gives 3·1, b gives 4·1 + 1·2, or 4·1 without it."""
    model = TwoConsumers().eval()
    graph = dafp.trace(model, PIXEL)
    small = dafp.prune(model, graph, PruningPlan({"make": (0, 2)}))
    assert at(model, 1) == [3, 6]
    assert at(small, 1) == [3, 4]
    assert small.a.weight.flatten().tolist() == [3, 1]
    assert small.b.weight.flatten().tolist() == [4, 0]


class Concatenated(nn.Module):
    """Two layers of 2 and 3 channels, consumed by one of 5."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = first([1, 2]), first([3, 4, 5])
        self.read = conv([[1, 10, 100, 1000, 10000]])

    def forward(self, x: Tensor) -> Tensor:
        return self.read(torch.cat([self.a(x), self.b(x)], 1))


def test_behind_a_concatenation_the_second_layer_is_read_further_on():
    """1·1 + 2·10 + 3·100 + 4·1000 + 5·10000; without a[0] and b[1]: 20 + 300 + 50000."""
    model = Concatenated().eval()
    graph = dafp.trace(model, PIXEL)
    assert graph["a"].consumers == (dafp.Slot("read.weight", 1, (0, 1)),)
    assert graph["b"].consumers == (dafp.Slot("read.weight", 1, (2, 3, 4)),)
    small = dafp.prune(model, graph, PruningPlan({"a": (1,), "b": (0, 2)}))
    assert at(model, 1) == [54321]
    assert at(small, 1) == [50320]


def flattened() -> nn.Sequential:
    """Two channels of 2×1 pixels, consumed by (3, 4) and by (5, 12) of one linear layer."""
    consumer = weighed(nn.Linear(4, 1), [[3, 4, 5, 12]], [1])
    return nn.Sequential(first([1, 1]), norm([2, 1]), nn.ReLU(), nn.Flatten(), consumer).eval()


def test_behind_a_flatten_a_channel_is_consumed_by_the_weights_of_all_its_pixels():
    """2·√(9+16) = 10, 1·√(25+144) = 13."""
    model = flattened()
    graph = dafp.trace(model, torch.ones(1, 1, 2, 1))
    close(criteria.dependency_aware(model, graph)["0"], [10, 13])
    assert graph["0"].consumers == (dafp.Slot("4.weight", 1, (0, 1, 2, 3)),)


def test_behind_a_flatten_a_channel_takes_all_its_pixels_along():
    """2·3 + 2·4 + 1·5 + 1·12 + 1 = 32; without the first channel 18."""
    model = flattened()
    graph = dafp.trace(model, torch.ones(1, 1, 2, 1))
    plan = selection.uniform(criteria.dependency_aware(model, graph), 0.5)
    small = dafp.prune(model, graph, plan)
    assert model(torch.ones(1, 1, 2, 1)).item() == 32
    assert small(torch.ones(1, 1, 2, 1)).item() == 18
    assert small[4].weight.tolist() == [[5, 12]]


# ---- scales --------------------------------------------------------------------------------------


def test_without_a_norm_the_producing_filter_replaces_the_scale():
    """Filters of norm 5, 1, 2, consumed by weights 2, 7, −1."""
    model = nn.Sequential(conv([[3, 4], [0, 1], [2, 0]]), nn.ReLU(), conv([[2, 7, -1]])).eval()
    graph = dafp.trace(model, torch.ones(1, 2, 1, 1))
    scores = criteria.dependency_aware(model, graph)
    close(scores["0"], [10, 7, 2])
    small = dafp.prune(model, graph, selection.uniform(scores, 1 / 3))
    # relu(7), relu(1), relu(2) → 14 + 7 − 2 = 19; without the last 21
    assert model(torch.ones(1, 2, 1, 1)).item() == 19
    assert small(torch.ones(1, 2, 1, 1)).item() == 21


def separable() -> nn.Sequential:
    """BN γ = 9, 1 → depthwise 1, 5 → BN γ = 1, 3 → consumer 4, 2."""
    middle = conv([[1], [5]], groups=2)
    return nn.Sequential(
        first([1, 1]), norm([9, 1]), nn.ReLU(), middle, norm([1, 3]), nn.ReLU(), conv([[4, 2]])
    ).eval()


def test_through_a_depthwise_layer_the_scale_nearest_to_the_consumer_counts():
    """1·4 and 3·2, whatever the scales of the first norm are."""
    model = separable()
    close(criteria.dependency_aware(model, dafp.trace(model, PIXEL))["0"], [4, 6])


def test_a_depthwise_layer_loses_the_channel_with_its_neighbours():
    """9·1·1·4 + 1·5·3·2 = 66; the second channel alone gives 30."""
    model = separable()
    graph = dafp.trace(model, PIXEL)
    small = dafp.prune(model, graph, PruningPlan({"0": (1,)}))
    assert at(model, 1) == [66]
    assert at(small, 1) == [30]
    assert (small[3].groups, small[3].in_channels, small[3].out_channels) == (1, 1, 1)


def test_grouped_channels_at_the_same_place_are_one_class():
    """γ = 1, 2, 3, 4 in two groups: (1·3)² + (3·4/3)² = 25, (2·2.5)² + (4·3)² = 169."""
    consumer = conv([[3, 2.5], [4 / 3, 3]], groups=2)
    model = nn.Sequential(first([1] * 4), norm([1, 2, 3, 4]), nn.ReLU(), consumer).eval()
    graph = dafp.trace(model, PIXEL)
    scores = criteria.dependency_aware(model, graph)
    close(scores["0"], [5, 13])
    small = dafp.prune(model, graph, selection.uniform(scores, 0.5))
    # outputs 1·3 + 2·2.5 = 8 and 3·4/3 + 4·3 = 16; without channels 0 and 2: 5 and 12
    close(torch.tensor(at(model, 1)), [8, 16])
    assert at(small, 1) == [5, 12]
    assert small[0].weight.shape[0] == 2


class Sum(nn.Module):
    """γ = 3, 1, 5 and 4, 1, 12, added and consumed by 1, 10, 2."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = first([1, 1, 1]), first([1, 1, 1])
        self.norm_a, self.norm_b = norm([3, 1, 5]), norm([-4, 1, 12])
        self.read = conv([[1, 10, 2]])

    def forward(self, x: Tensor) -> Tensor:
        return self.read((self.norm_a(self.a(x)) + self.norm_b(self.b(x))).relu())


def test_a_coupled_stream_has_the_root_of_the_squares_of_its_scales():
    """5·1, √2·10, 13·2."""
    model = Sum().eval()
    graph = dafp.trace(model, PIXEL, residual="couple")
    close(criteria.dependency_aware(model, graph)["a"], [5, 10 * math.sqrt(2), 26])


def test_a_coupled_stream_has_both_scales_by_themselves_too():
    """√(3²+4²), √(1+1), √(5²+12²)."""
    model = Sum().eval()
    graph = dafp.trace(model, PIXEL, residual="couple")
    close(criteria.bn_scale(model, graph)["a"], [5, math.sqrt(2), 13])


def test_a_coupled_stream_is_cut_out_of_all_its_producers():
    """At 1: relu(3−4), relu(2), relu(17), so 20 + 34; without channel 1 it is 34. At −1: 1."""
    model = Sum().eval()
    graph = dafp.trace(model, PIXEL, residual="couple")
    small = dafp.prune(model, graph, PruningPlan({"a": (0, 2)}))
    assert (at(model, 1), at(model, -1)) == ([54], [1])
    assert (at(small, 1), at(small, -1)) == ([34], [1])
    assert (small.a.out_channels, small.b.out_channels) == (2, 2)


def test_a_stream_is_kept_whole_by_default():
    graph = dafp.trace(Sum(), PIXEL)
    assert graph.groups == ()
    assert [(kept.name, kept.size) for kept in graph.kept] == [("a", 3), ("b", 3)]


class PreActivation(nn.Module):
    """Stream of 3 channels; BN γ = 2, 1, 3 in front of a consumer of norm 5, 1, 0."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm1 = first([1, 1, 1]), norm([2, 1, 3])
        self.conv1, self.norm2 = conv([[3, 1, 0], [4, 0, 0]]), norm([1, 0.5])
        self.conv2, self.read = conv([[1, 0], [0, 2], [0, 0]]), conv([[1, 1, 1]])

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y = self.conv1(self.norm1(x).relu())
        return self.read(x + self.conv2(self.norm2(y).relu()))


def test_a_consumer_of_the_stream_scores_its_inputs_and_its_filters():
    """Inputs of conv1: 2·5, 1·1, 3·0. Filters of conv1: 1·1 and .5·2."""
    model = PreActivation().eval()
    graph = dafp.trace(model, PIXEL)
    assert [(g.name, g.kind) for g in graph.groups] == [("conv1", "filter"), ("norm1", "selection")]
    scores = criteria.dependency_aware(model, graph)
    close(scores["norm1"], [10, 1, 0])
    close(scores["conv1"], [1, 1])


def test_a_selection_narrows_the_consumer_and_its_norm_but_not_the_stream():
    """At 1: conv1 gives 3·2 + 1·1 = 7 and 4·2 = 8, so the stream is 1+7, 1+2·4, 1: sum 18.

    Without input 1 of conv1 it gives 6: sum 17.
    """
    model = PreActivation().eval()
    graph = dafp.trace(model, PIXEL)
    small = dafp.prune(model, graph, PruningPlan({"norm1": (0, 2)}))
    assert at(model, 1) == [18]
    assert at(small, 1) == [17]
    assert (small.stem.out_channels, small.read.in_channels) == (3, 3)
    assert (small.norm1.num_features, small.conv1.in_channels) == (2, 2)
    assert small.norm1.index.tolist() == [0, 2]


def test_filters_alone_count_as_filters():
    """Feature selection removes no filter: conv1's two are all there is to prune."""
    graph = dafp.trace(PreActivation(), PIXEL)
    plan = PruningPlan({"norm1": (0,), "conv1": (0,)})
    assert graph.filters == 2
    assert selection.removed_share(graph, plan, "filters") == 0.5


# ---- other criteria ------------------------------------------------------------------------------


def filters() -> nn.Sequential:
    """Filters (0,0), (3,4), (−6,8); γ = .5, −2, 1."""
    make = conv([[0, 0], [3, 4], [-6, 8]])
    return nn.Sequential(make, norm([0.5, -2, 1]), nn.ReLU(), conv([[1, 1, 1]])).eval()


@pytest.mark.parametrize(
    ("criterion", "expected"),
    [
        (criteria.bn_scale, [0.5, 2, 1]),
        (criteria.l1_norm, [0, 7, 14]),
        (criteria.l2_norm, [0, 5, 10]),
        # distances 5, 10 and √(9²+4²) = √97 to each other
        (criteria.geometric_median, [15, 5 + math.sqrt(97), 10 + math.sqrt(97)]),
    ],
)
def test_other_criteria_follow_their_formula(criterion, expected):
    model = filters()
    graph = dafp.trace(model, torch.ones(1, 2, 1, 1))
    close(criterion(model, graph)["0"], expected)


def test_taylor_is_the_square_of_what_a_gate_would_change():
    """The loss is the sum of the outputs, 3·z₀ + 1·z₁ with z = γx + β = (2, −3)·x + (1, 4).

    Over the two images 1 and 2 of the first batch z is (3+5, 1−2): gates 3·8 and −1; over the one
    image 0 of the second (1, 4): gates 3 and 4. Mean of the squares: (576+9)/2, (1+16)/2.
    """
    model = nn.Sequential(first([1, 1]), norm([2, -3], [1, 4]), conv([[3, 1]]))
    graph = dafp.trace(model, PIXEL)
    batches = [(torch.tensor([1.0, 2.0]).view(2, 1, 1, 1), None), (0 * PIXEL, None)]
    scores = criteria.taylor(model, graph, batches, loss=lambda out, _: out.sum())
    close(scores["0"], [292.5, 8.5])


# ---- the shift β ---------------------------------------------------------------------------------

GAMMA, BETA = [1.0, -2.0, 0.5, 0.01], [0.0, 1.5, -1.0, 3.0]


def shifted(act: nn.Module, bias: Any = None) -> nn.Sequential:
    """Four channels with scale and shift, consumed by columns of norm 2, 1, 5, 10."""
    consumer = conv([[2, 0, 3, 6], [0, 1, 4, 8]], bias)
    return nn.Sequential(first([1] * 4), norm(GAMMA, BETA), act, consumer).eval()


def integrated(act: nn.Module) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of act(β + γz), z ~ N(0, 1), by the trapezoidal rule."""
    z = torch.linspace(-12, 12, 240_001, dtype=torch.double)[:, None]
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    value = act(torch.tensor(BETA).double() + torch.tensor(GAMMA).double() * z).detach()
    mean = torch.trapezoid(value * density, z, dim=0)
    return mean, torch.trapezoid((value - mean).square() * density, z, dim=0).sqrt()


@pytest.mark.parametrize("act", [nn.ReLU(), nn.SiLU(), nn.Identity()], ids=str)
def test_shift_aware_is_the_integrated_spread_times_the_consumer(act):
    model = shifted(act)
    scores = criteria.shift_aware(model, dafp.trace(model, PIXEL))["0"]
    _, spread = integrated(act)
    close(scores, (spread * torch.tensor([2, 1, 5, 10])).tolist(), 1e-4)


def test_shift_aware_of_a_half_open_relu_has_a_closed_form():
    """β = 0: the spread of relu(z) is √(1/2 − 1/(2π)) = .5838, consumed by 2."""
    model = shifted(nn.ReLU())
    score = criteria.shift_aware(model, dafp.trace(model, PIXEL))["0"][0]
    assert float(score) == pytest.approx(2 * math.sqrt(0.5 - 0.5 / math.pi), rel=1e-5)


def test_shift_aware_finds_a_channel_that_is_as_good_as_constant():
    """The last channel is 3 ± .01, consumed by 10: .1 by its spread."""
    model = shifted(nn.ReLU())
    scores = criteria.shift_aware(model, dafp.trace(model, PIXEL))["0"]
    assert float(scores[3]) == pytest.approx(0.1, rel=1e-5)


def test_shift_aware_with_batches_takes_the_spread_of_the_consumers_inputs():
    """Channel 0 is 4 once in sixteen times, else 0: ¼·√15, consumed by 2. Channel 1 is constant."""
    consumer = nn.Linear(2, 1, bias=False)
    consumer.weight.data = torch.tensor([[2.0, 30.0]])
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), consumer)
    model[0].weight.data = torch.eye(2)
    rare = torch.tensor([[4.0, 1.0], *[[0.0, 1.0]] * 15])
    graph = dafp.trace(model, rare)
    scores = criteria.shift_aware(model, graph, [rare[:8], (rare[8:], torch.zeros(8))])
    close(scores["0"], [2 * 4 * math.sqrt(15) / 16, 0], 1e-6)
    with pytest.raises(dafp.errors.PlanError, match="got no batches"):
        criteria.shift_aware(model, graph, [])
    assert not consumer._forward_hooks


def test_the_spread_behind_a_flatten_is_that_of_every_entry():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Flatten(), nn.Linear(4 * 4, 5)).eval()
    x = torch.randn(64, 3, 2, 2)
    scores = criteria.shift_aware(model, dafp.trace(model, x[:1]), [x])["0"]
    spread = model[:2](x).std(0, correction=0)
    wanted = (spread * model[2].weight.norm(dim=0)).view(4, 4).norm(dim=1)
    close(scores, wanted.tolist(), 1e-5)


def test_compensation_gives_the_mean_to_the_consumers_bias():
    """The last channel's mean is 3, consumed by 6 and 8: 18 and 24 more on the bias of 7 and 5."""
    model = shifted(nn.ReLU(), [7, 5])
    graph = dafp.trace(model, PIXEL)
    plan = PruningPlan({"0": (0, 1, 2)})
    small = dafp.prune(model, graph, plan, compensate=True)
    close(small[3].bias, [25, 29], 1e-5)
    assert dafp.prune(model, graph, plan)[3].bias.tolist() == [7, 5]


def test_compensation_gives_the_mean_to_the_running_mean_where_there_is_no_bias():
    """The mean of relu(z), z ~ N(0, 1), is 1/√(2π); times 2 and 0, it is subtracted."""
    model = nn.Sequential(shifted(nn.ReLU()), norm([1, 1])).eval()
    graph = dafp.trace(model, PIXEL)
    small = dafp.prune(model, graph, PruningPlan({"0.0": (1, 2, 3)}), compensate=True)
    close(small[1].running_mean, [-2 / math.sqrt(2 * math.pi), 0], 1e-5)


def test_compensation_reaches_a_consumer_with_one_output():
    """The mean of relu(z) is 1/√(2π), consumed by 2."""
    model = nn.Sequential(first([1, 1]), norm([1, 1]), nn.ReLU(), conv([[2, 1]], [7])).eval()
    graph = dafp.trace(model, PIXEL)
    small = dafp.prune(model, graph, PruningPlan({"0": (1,)}), compensate=True)
    close(small[3].bias, [7 + 2 / math.sqrt(2 * math.pi)], 1e-5)


# ---- halves that must be even --------------------------------------------------------------------


class Halves(nn.Module):
    """Six channels, cut in the middle: relu of the first three, the others as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.make, self.read = first([1, 2, 3, 4, 5, 6]), conv([[1, 1, 1, 10, 10, 10]])

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.make(x).chunk(2, 1)
        return self.read(torch.cat([a.relu(), b], 1))


def test_the_best_of_the_removed_comes_back_to_the_smaller_half():
    """Filters 1…6, consumed by 1 and 10: S = 1, 2, 3, 40, 50, 60; the first three are lowest.

    An even split of what remains needs as many in front: all three come back.
    """
    model = Halves().eval()
    graph = dafp.trace(model, PIXEL)
    plan = selection.uniform(criteria.dependency_aware(model, graph), 0.5)
    assert plan.keep == {"make": (3, 4, 5)}
    assert graph.resolve(plan).keep == {"make": (0, 1, 2, 3, 4, 5)}
    one = PruningPlan({"make": (0, 3, 5)}, spare={"make": (2, 4, 1)})
    assert graph.resolve(one).keep == {"make": (0, 2, 3, 5)}


def test_even_halves_say_what_paper_and_pencil_say():
    """At 1 channels 0, 2 and 3, 5 say 1 + 3 + 40 + 60; at −1 the first half is silent."""
    model = Halves().eval()
    graph = dafp.trace(model, PIXEL)
    small = dafp.prune(model, graph, PruningPlan({"make": (0, 2, 3, 5)}))
    assert at(small, 1) == [104]
    assert at(small, -1) == [-100]


@pytest.mark.parametrize("kept", [(0, 1, 3), (2, 4, 5), (0, 5), (1, 2, 4), (3,), (0, 1, 2)])
def test_uneven_halves_are_made_even(kept):
    model = Halves().eval()
    graph = dafp.trace(model, PIXEL)
    legal = graph.resolve(PruningPlan({"make": kept})).keep["make"]
    assert set(kept) <= set(legal)
    assert sum(c < 3 for c in legal) == sum(c >= 3 for c in legal)
