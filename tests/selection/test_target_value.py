"""Targets as texts and as values: shares to remove, and amounts that may be left."""

import pytest

from dafp.errors import PlanError
from dafp.selection.target_value import Target, parse_target


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("macs=0.5", Target("macs", share=0.5)),
        ("0.3", Target("params", share=0.3)),
        ("macs=2G", Target("macs", left=2e9)),
        ("params=5.5m", Target("params", left=5.5e6)),
        ("filters=1.2k", Target("filters", left=1200)),
        ("latency=10ms", Target("latency", left=0.01)),
        ("latency=250us", Target("latency", left=0.00025)),
        ("latency=0.5", Target("latency", share=0.5)),
    ],
)
def test_a_text_is_a_share_to_remove_or_an_amount_that_may_be_left(text, target):
    found = parse_target(text, "params")
    assert (found.unit, found.share) == (target.unit, target.share)
    assert found.left == (None if target.left is None else pytest.approx(target.left))


@pytest.mark.parametrize(
    "text",
    ["macs=50", "macs", "flops=0.5", "macs=2X", "latency=2G", "macs=0", "1", "-0.5", "=", ""],
)
def test_what_is_no_target_is_refused_with_what_is_allowed(text):
    with pytest.raises(PlanError, match=r"--target .*macs=0\.5.*macs=2G.*latency=10ms"):
        parse_target(text)


def test_the_share_of_an_amount_depends_on_the_network():
    assert Target("macs", left=3e6).share_of(4e6) == pytest.approx(0.25)
    assert Target("macs", share=0.5).share_of(4e6) == 0.5
    with pytest.raises(PlanError, match="the network has only 2"):
        Target("params", left=3).share_of(2)


@pytest.mark.parametrize(
    "values",
    [{}, {"share": 0.5, "left": 3.0}, {"share": 1.5}, {"left": -1.0}, {"left": float("nan")}],
    ids=str,
)
def test_a_target_that_says_nothing_or_too_much_is_refused(values):
    with pytest.raises(PlanError):
        Target("macs", **values)
