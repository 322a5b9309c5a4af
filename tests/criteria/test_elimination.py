"""Scores by elimination: against brute force, and where channels can replace each other."""

import itertools

import pytest
import torch
from torch import nn

import dafp
from dafp.criteria.elimination import System, eliminate
from dafp.errors import PlanError


def system(seed: int, channels: int, width: int, outputs: int) -> tuple[System, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    mixing = torch.randn(
        channels * width, channels * width, generator=generator, dtype=torch.double
    )
    rows = torch.randn(500, channels * width, generator=generator, dtype=torch.double) @ mixing
    gram = rows.T @ rows / len(rows)
    weights = torch.randn(outputs, channels * width, generator=generator, dtype=torch.double)
    columns = torch.arange(channels * width).view(channels, width)
    return System(weights.clone(), torch.linalg.inv(gram), columns, 1.0), gram


def least_error(weights, gram, columns, removed) -> float:
    """tr(D·H·Dᵀ) for the best weights on the columns that are left, by the normal equations."""
    gone = columns[list(removed)].flatten()
    left = torch.tensor([c for c in range(gram.shape[0]) if c not in set(gone.tolist())])
    inner = gram[gone][:, gone] - gram[gone][:, left] @ torch.linalg.solve(
        gram[left][:, left], gram[left][:, gone]
    )
    return float((weights[:, gone] @ inner * weights[:, gone]).sum())


@pytest.mark.parametrize("width", [1, 4])
@pytest.mark.parametrize("seed", range(3))
def test_the_score_is_the_least_error_without_that_channel_and_those_before_it(seed, width):
    one, gram = system(seed, 6, width, 3)
    weights, columns = one.weights.clone(), one.columns
    scores = eliminate([one], 6)
    order = scores.argsort().tolist()
    for count in range(1, 6):
        wanted = least_error(weights, gram, columns, order[:count])
        assert float(scores[order[count - 1]]) == pytest.approx(wanted, rel=1e-5)


def test_the_first_channel_is_the_cheapest_one_and_each_next_one_is_the_best_by_brute_force():
    one, gram = system(7, 6, 2, 3)
    weights, columns = one.weights.clone(), one.columns
    order, chosen = eliminate([one], 6).argsort().tolist(), []
    for _ in range(4):
        rest = [c for c in range(6) if c not in chosen]
        costs = {j: least_error(weights, gram, columns, [*chosen, j]) for j in rest}
        chosen.append(min(costs, key=costs.get))
    assert order[:4] == chosen


def test_errors_of_two_consumers_are_added():
    first, _ = system(1, 5, 2, 3)
    second, _ = system(2, 5, 1, 4)
    weights = [s.weights.clone() for s in (first, second)]
    inverses = [s.inverse.clone() for s in (first, second)]
    scores = eliminate([first, second], 5)
    cheapest = int(scores.argmin())
    total = 0.0
    for w, inverse, columns in zip(weights, inverses, (first.columns, second.columns), strict=True):
        c = columns[cheapest]
        total += float((w[:, c] @ torch.linalg.inv(inverse[c][:, c]) * w[:, c]).sum())
    assert float(scores[cheapest]) == pytest.approx(total, rel=1e-6)


def test_a_copy_is_cheap_and_an_independent_channel_is_not():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 5, 3)).eval()
    with torch.no_grad():
        net[0].weight[3] = net[0].weight[1]
        net[0].bias[3] = net[0].bias[1]
    x = torch.randn(64, 3, 10, 10)
    graph = dafp.trace(net, x)
    scores = dafp.criteria.reconstruction_error(net, graph, [x])["0"]
    assert int(scores.argmin()) in (1, 3)
    assert float(scores.min()) < 0.01 * float(scores.sort().values[1])


def test_labels_are_not_used_and_equal_seeds_give_equal_scores():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3)).eval()
    x = torch.randn(32, 3, 10, 10)
    graph = dafp.trace(net, x)
    plain = dafp.criteria.reconstruction_error(net, graph, [x])["0"]
    paired = dafp.criteria.reconstruction_error(net, graph, [(x, torch.zeros(32))])["0"]
    assert torch.equal(plain, paired)
    assert plain.unique().numel() == 6


@pytest.mark.parametrize("name", ["taylor", "reconstruction_error"])
def test_a_criterion_that_needs_data_is_refused_without_it(name):
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 5, 3))
    with pytest.raises(PlanError, match=f"{name}' needs data: give .*calibration images, or"):
        dafp.slim(net, torch.randn(1, 3, 8, 8), criterion=name)


def test_all_subsets_of_orthogonal_inputs_agree_with_the_order():
    """Without correlation no correction is possible: the cost is that of the channel alone."""
    weights = torch.tensor([[3.0, 0.5, 2.0, 0.1]], dtype=torch.double)
    one = System(weights.clone(), torch.eye(4, dtype=torch.double), torch.arange(4).view(4, 1), 1.0)
    scores = eliminate([one], 4)
    squares = weights[0].square()
    best = min(itertools.combinations(range(4), 2), key=lambda s: float(squares[list(s)].sum()))
    assert set(scores.argsort()[:2].tolist()) == set(best) == {1, 3}
    torch.testing.assert_close(scores, torch.tensor([13.26, 0.26, 4.26, 0.01]))
