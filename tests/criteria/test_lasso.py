"""LASSO on channels: the path against all supports and signs, and scores computed by hand."""

import itertools

import pytest
import torch
from torch import nn

import dafp
from dafp.criteria.lasso import by_channel, contributions, lasso_path, support
from dafp.errors import PlanError


def best_support(gram, cross, penalty):
    """The support of the minimum of ½βᵀGβ − bᵀβ + λ‖β‖₁, among all supports and signs."""
    best = (0.0, ())
    for count in range(1, len(cross) + 1):
        for chosen in itertools.combinations(range(len(cross)), count):
            places = list(chosen)
            for signs in itertools.product((1.0, -1.0), repeat=count):
                sign = torch.tensor(signs, dtype=torch.double)
                part = torch.linalg.solve(gram[places][:, places], cross[places] - penalty * sign)
                if bool((part * sign <= 0).any()):
                    continue
                beta = torch.zeros_like(cross)
                beta[places] = part
                value = float(0.5 * beta @ gram @ beta - cross @ beta + penalty * part.abs().sum())
                best = min(best, (value, chosen))
    return best[1]


def problem(seed):
    """Strongly correlated columns, so that some channels leave the path again."""
    draw = torch.Generator().manual_seed(seed)
    x = torch.randn(9, 4, generator=draw, dtype=torch.double)
    x[:, 1] += 1.5 * x[:, 0]
    x[:, 3] -= 1.2 * x[:, 2] - x[:, 0]
    y = x @ torch.randn(4, generator=draw, dtype=torch.double)
    y += torch.randn(9, generator=draw, dtype=torch.double)
    return x.T @ x, x.T @ y


def test_the_path_has_the_best_of_all_supports_between_its_breakpoints():
    removals = checked = 0
    for seed in range(24):
        gram, cross = problem(seed)
        path = lasso_path(gram, cross)
        for (upper, active), (lower, after) in itertools.pairwise(path):
            removals += len(after) < len(active)
            if upper - lower > 1e-3 * path[0][0]:
                checked += 1
                middle = (upper + lower) / 2
                assert set(active) == set(best_support(gram, cross, middle)), (seed, middle)
    assert checked > 60
    assert removals > 2


def test_the_support_of_a_size_is_that_of_the_largest_penalty_with_this_size():
    gram, cross = problem(3)
    penalties = torch.linspace(float(cross.abs().max()), 0, 120)[1:-1].tolist()
    first = {}
    for penalty in penalties:
        best = best_support(gram, cross, penalty)
        first.setdefault(len(best), sorted(best))
    assert set(first) >= {1, 2, 3}
    for count, expected in first.items():
        if count:
            assert support(gram, cross, count) == expected
    assert support(gram, cross, 0) == []


def test_independent_channels_enter_when_the_penalty_falls_to_their_energy():
    """G = diag(9, 1, 4), b = G·1: β_c = max(0, 1 − λ/G_cc)."""
    gram = torch.diag(torch.tensor([9.0, 1.0, 4.0], dtype=torch.double))
    path = lasso_path(gram, gram.sum(1))
    assert [active for _, active in path[:3]] == [(0,), (0, 2), (0, 2, 1)]
    assert [penalty for penalty, _ in path[:3]] == pytest.approx([9.0, 4.0, 1.0], rel=1e-4)


def test_equal_energies_enter_together_and_a_copy_is_not_used():
    gram = torch.diag(torch.tensor([4.0, 4.0, 1.0], dtype=torch.double))
    assert support(gram, gram.sum(1), 2) == [0, 1]
    rows = torch.tensor([[3.0, 3.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.double)
    gram = rows.T @ rows  # the second column is a copy of the first
    assert support(gram, gram.sum(1), 2) == [0, 2]


def test_contributions_are_the_products_of_what_inputs_add_to_the_outputs():
    draw = torch.Generator().manual_seed(0)
    weights = torch.randn(5, 3, 4, generator=draw, dtype=torch.double)
    patches = torch.randn(7, 3, 4, generator=draw, dtype=torch.double)
    adds = torch.einsum("oik,rik->roi", weights, patches).flatten(0, 1)
    flat = patches.flatten(1)
    torch.testing.assert_close(contributions(weights, flat.T @ flat, True), adds.T @ adds)
    pixels = torch.randn(7, 3, generator=draw, dtype=torch.double)
    each = torch.einsum("oik,ri->koir", weights, pixels).permute(0, 1, 3, 2).flatten(0, 2)
    torch.testing.assert_close(contributions(weights, pixels.T @ pixels, False), each.T @ each)


def test_inputs_of_other_groups_are_taken_from_the_wanted_outputs():
    """Input 1 belongs to another group; inputs 0 and 2 are channel 1 and 0 of this one."""
    products = torch.tensor([[4.0, 1.0, 0.5], [1.0, 9.0, 2.0], [0.5, 2.0, 1.0]])
    gram, cross = by_channel(products, products.sum(1), torch.tensor([1, -1, 0]), 2)
    assert gram.tolist() == [[1.0, 0.5], [0.5, 4.0]]
    assert cross.tolist() == [1.5, 4.5]


def test_scores_follow_what_channels_add_to_the_next_layer():
    """Independent inputs of variance 1: channel c adds weights of energy 4, 0.25, 9 and 0."""
    net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 2))
    with torch.no_grad():
        net[0].weight.copy_(torch.eye(4))
        net[1].weight.copy_(torch.tensor([[2.0, 0.3, 0.0, 0.0], [0.0, 0.4, 3.0, 0.0]]))
    x = torch.randn(4096, 4, generator=torch.Generator().manual_seed(0))
    x = (x - x.mean(0)) @ torch.linalg.inv(torch.linalg.cholesky(torch.cov(x.T, correction=0))).T
    graph = dafp.trace(net, x)
    scores = dafp.criteria.lasso(net, graph, [x], images=4096, rows=4096)["0"]
    expected = torch.tensor([4.0, 0.25, 9.0, 0.0]) / 13.25
    torch.testing.assert_close(scores, expected, rtol=1e-3, atol=1e-6)


def test_labels_are_not_used_and_one_image_is_refused():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).eval()
    x = torch.randn(16, 3, 8, 8)
    graph = dafp.trace(net, x)
    plain = dafp.criteria.lasso(net, graph, [x])["0"]
    assert torch.equal(plain, dafp.criteria.lasso(net, graph, [(x, torch.zeros(16))])["0"])
    assert plain.unique().numel() == 4
    with pytest.raises(PlanError, match="lasso got one image"):
        dafp.criteria.lasso(net, graph, [x[:1]])
