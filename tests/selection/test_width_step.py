"""The step of widths that commands choose, and plans in wide steps that still meet the target."""

import pytest
import torch
from torch import nn

import dafp
from dafp.selection.nearest_steps import nearest_steps
from dafp.selection.width_step import step_in, width_step


def chain(*widths, size=32):
    """Convolutions with BN and pooling, and their graph."""
    layers, channels = [], 3
    for width in widths:
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        layers += [nn.MaxPool2d(2)]
        channels = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 3)]
    torch.manual_seed(0)
    model = nn.Sequential(*layers, *head)
    return model, dafp.trace(model, torch.randn(1, 3, size, size))


@pytest.mark.parametrize(
    ("widths", "target", "step"),
    [
        ((16, 32, 64, 128), 0.5, 16),
        ((16, 32, 64, 128), 0.7, 8),  # with 16 at least in each layer, 69 % can be removed
        ((64, 128, 256), 0.7, 16),
        ((8, 16, 32), 0.5, 4),
        ((12, 12), 0.5, 4),  # a multiple of 8 leaves 8 or 12 channels
        ((3, 5), 0.5, 1),
        ((16, 32, 64, 128), 0.99, 1),
    ],
)
def test_the_step_of_widths_leaves_room_for_the_target(widths, target, step):
    _, graph = chain(*widths)
    assert width_step(graph, target, "macs") == step


def test_a_minimum_of_channels_does_not_count_as_room():
    _, graph = chain(16, 32, 64)
    assert width_step(graph, 0.25, "filters") == 16
    assert width_step(graph, 0.25, "filters", min_channels=24) == 8  # keeps 24 channels, not 32


@pytest.mark.parametrize(
    ("widths", "step"),
    [
        ([(32, 16), (64, 48)], 16),
        ([(32, 24), (64, 48)], 8),
        ([(30, 30), (64, 48)], 16),  # what is whole was not rounded
        ([(32, 15)], 1),
        ([(32, 32)], 1),
        ([], 1),
    ],
)
def test_the_step_of_widths_is_read_from_those_that_were_pruned(widths, step):
    assert step_in(widths) == step


def test_steps_that_lead_too_far_are_left_out_and_later_ones_of_other_groups_taken():
    steps = [("a", 20), ("b", 50), ("a", 20), ("b", 1), ("c", 8), ("c", 6)]

    def taken(count, target):
        found = nearest_steps(steps, count, lambda s: s[0], lambda t: sum(n for _, n in t), target)
        return found

    assert taken(1, 50) == [("a", 20), ("a", 20), ("c", 8)]  # 48; b is closed, c's 6 leads to 54
    assert taken(1, 53) == [("a", 20), ("a", 20), ("c", 8), ("c", 6)]  # 54 is nearer than 48
    assert taken(1, 70) == [("a", 20), ("b", 50)]


@pytest.mark.parametrize("target", [0.2, 0.3, 0.4, 0.5, 0.6])
@pytest.mark.parametrize("rule", ["local_threshold", "global_ranking", "uniform"])
def test_a_plan_in_multiples_of_sixteen_is_near_its_target(rule, target):
    model, graph = chain(16, 32, 64, 128, size=64)
    scores = dafp.criteria.l1_norm(model, graph)
    plan = dafp.selection.to_target(
        scores, graph, target, "macs", getattr(dafp.selection, rule), round_to=16
    )
    assert all(len(kept) % 16 == 0 for kept in plan.keep.values())
    assert 1 - plan.after.macs / plan.before.macs == pytest.approx(target, abs=0.05)


def test_least_damage_in_multiples_of_sixteen_is_near_its_target():
    model, graph = chain(16, 32, 64, 128, size=64)
    x = torch.randn(16, 3, 64, 64)
    scores = dafp.criteria.reconstruction_error(model, graph, [x])
    table = dafp.recovery.measure_damage(model, graph, scores, [x])
    for target in (0.2, 0.3, 0.4, 0.5, 0.6):
        plan = dafp.selection.least_damage(table, graph, target, "macs", round_to=16)
        assert all(len(kept) % 16 == 0 for kept in plan.keep.values())
        assert 1 - plan.after.macs / plan.before.macs == pytest.approx(target, abs=0.05)
