"""What is tied together ends up together: against union-find written the plain way."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dafp.graph.trace_log import Location, Tie
from dafp.tracing import union_find

WHERE = Location("op", "module")
PAIRS = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=60)


def tie(pairs: list[tuple[int, int]]) -> Tie:
    a, b = (torch.tensor(ends) for ends in zip(*pairs, strict=True))
    return Tie("same", a, b, WHERE)


def smallest(total: int, pairs: list[tuple[int, int]]) -> list[int]:
    least = list(range(total))
    for _ in range(total):
        for a, b in pairs:
            least[a] = least[b] = min(least[a], least[b])
    return least


@settings(suppress_health_check=[HealthCheck.too_slow])  # on a loaded machine
@given(st.lists(PAIRS, max_size=4))
def test_components_are_those_of_plain_union_find(several: list[list[tuple[int, int]]]):
    found = union_find.components(41, [tie(pairs) for pairs in several])
    assert found.tolist() == smallest(41, [pair for pairs in several for pair in pairs])


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(PAIRS, min_size=1, max_size=4))
def test_components_grow_with_ties_and_labels(several: list[list[tuple[int, int]]]):
    found, ties = union_find.Components(), []
    for number, pairs in enumerate(several):
        total = 41 + 5 * number
        ties.append(tie(pairs))
        found.update(total, ties)
        so_far = [pair for pairs in several[: number + 1] for pair in pairs]
        assert found.of(torch.arange(total)).tolist() == smallest(total, so_far)


@pytest.mark.parametrize("portion", [1, 100, 1 << 15])
@pytest.mark.parametrize("back", [False, True])
def test_a_long_chain_is_one_component(portion: int, back: bool, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(union_find, "_PORTION", portion)
    chain = [[(label, label + 1)] for label in range(500)]
    found = union_find.components(502, [tie(pair) for pair in (chain[::-1] if back else chain)])
    assert found.tolist() == [0] * 501 + [501]
