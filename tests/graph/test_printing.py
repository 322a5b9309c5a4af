"""Graphs, groups, slots and plans print short texts, and HTML tables in notebooks."""

import pytest
import torch
from torch import nn

import dafp
from dafp.graph.printing import at_most, shortened
from dafp.models import build

IMAGE = torch.zeros(1, 3, 8, 8)


def chain(layers: int) -> nn.Module:
    convolutions = [nn.Conv2d(3 if i == 0 else 2, 2, 1) for i in range(layers)]
    return nn.Sequential(*convolutions)


def test_the_graph_of_resnet20_has_at_most_20_lines():
    graph = dafp.trace(build("resnet20"), torch.zeros(1, 3, 32, 32))
    lines = repr(graph).splitlines()
    assert len(lines) <= 20
    assert lines[0].startswith("ChannelGraph of 9 groups: 336 of ")
    assert all(any(group.name in line for line in lines) for group in graph.groups)


def test_a_graph_of_many_groups_says_how_many_it_leaves_out():
    lines = repr(dafp.trace(chain(31), IMAGE)).splitlines()
    assert len(lines) == 20
    assert lines[-1] == "  … and 12 more"


def test_a_plan_of_many_groups_says_how_many_it_leaves_out():
    plan = dafp.PruningPlan({f"layer{i}": (0,) for i in range(30)}, {"layer0": 5})
    lines = repr(plan).splitlines()
    assert lines[:3] == ["PruningPlan of 30 groups", "  layer0: 5 → 1", "  layer1: ? → 1"]
    assert len(lines) == 20
    assert lines[-1] == "  … and 12 more"


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ((), "()"),
        ((4,), "(4,)"),
        ((0, 2), "(0, 2)"),
        (tuple(range(8)), "(0, 1, 2, 3, 4, 5, 6, 7)"),
        (tuple(range(64)), "(0, 1, …, 63)"),
    ],
)
def test_many_numbers_are_shortened(values, text):
    assert shortened(values) == text
    slot = dafp.Slot("conv.weight", 0, values)
    assert repr(slot) == f"Slot(param='conv.weight', dim=0, index={text})"


def test_a_text_of_as_many_lines_as_allowed_is_not_shortened():
    assert at_most(["a", "b"], 2) == "a\nb"
    assert at_most(["a", "b", "c"], 2) == "a\n  … and 2 more"


def test_a_group_prints_the_tensors_of_each_role_on_one_line():
    (group,) = dafp.trace(chain(2), IMAGE).groups
    assert repr(group) == (
        "Group('0', size=2, kind='filter', producers=[0.weight], scales=[], "
        "consumers=[1.weight], followers=[0.bias])"
    )


def test_an_error_shortens_a_long_list_of_channels_with_both_brackets():
    with pytest.raises(dafp.errors.PlanError, match=r"keeps \[9, 8, …, 0\]; kept"):
        dafp.PruningPlan({"conv": tuple(range(9, -1, -1))})


def test_graphs_and_plans_are_escaped_tables_in_notebooks():
    graph = dafp.trace(chain(2), IMAGE)
    assert "<td>0</td><td>filter</td><td>2</td><td>0.weight</td>" in graph._repr_html_()
    assert "<td>kept: an output of the model</td>" in graph._repr_html_()
    plan = graph.resolve(dafp.PruningPlan({"0": (1,)}))
    assert "<tr><td>0</td><td>2</td><td>1</td></tr>" in plan._repr_html_()
    assert "<td>parameters</td><td>14</td><td>8</td>" in plan._repr_html_()
    assert "<td>&lt;b&gt;</td>" in dafp.PruningPlan({"<b>": (0,)})._repr_html_()
