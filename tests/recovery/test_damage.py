"""Measured damage: what a table holds, and the widths that are chosen by it."""

import copy

import pytest
import torch
from torch import nn

import dafp
from dafp.errors import FileError, PlanError, TargetError
from dafp.selection import DamageTable, GroupDamage, least_damage
from dafp.selection.damage_table import balanced_units
from dafp.selection.width_cost import WidthCost
from support import zoo


def net_of_two() -> nn.Sequential:
    """The second group has copies of two channels: removing half of it costs nothing."""
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1)
    ).eval()
    with torch.no_grad():
        net[2].weight[2:] = net[2].weight[:2]
        net[2].bias[2:] = net[2].bias[:2]
    return net


def table_of(net, x, **kwargs):
    graph = dafp.trace(net, x)
    scores = dafp.criteria.reconstruction_error(net, graph, [x])
    return graph, dafp.recovery.measure_damage(net, graph, scores, [x], **kwargs)


@pytest.mark.parametrize("how", ["squares", "logits", "score"])
def test_a_group_of_copies_suffers_no_damage_and_the_model_is_not_changed(how):
    net, x = net_of_two(), torch.randn(64, 3, 9, 9)
    head = nn.Sequential(*net, nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    before = copy.deepcopy(head.state_dict())
    with torch.no_grad():
        goal = head(x)
    options = {
        "squares": {}, "logits": {"logits": True},
        "score": {"score": lambda m: -float((m(x) - goal).abs().mean())},
    }[how]  # fmt: skip
    _, table = table_of(head, x, **options)
    first, second = table.groups
    assert (first.names, first.removed, second.names) == (("0",), (2,), ("2",))
    assert first.damage[0] > 1e-7
    assert second.damage[0] < 0.02 * first.damage[0]
    assert all(torch.equal(before[k], v) for k, v in head.state_dict().items())


def test_the_table_is_a_value_that_survives_its_file_and_prints():
    _, table = table_of(net_of_two(), torch.randn(64, 3, 9, 9), ratios=(0.25, 0.5))
    assert DamageTable.from_json(table.to_json()) == table
    assert table.groups[0].removed == (1, 2)
    assert "relative squared error on 64 images" in str(table)
    with pytest.raises(FileError, match="not a damage table"):
        DamageTable.from_json("{}")


def test_damage_follows_the_curve_through_the_measurements():
    group = GroupDamage(("a",), 4, (2,), (0.4,), ((0, 1, 2, 3),), (0.0, 1.0, 2.0, 6.0, 8.0))
    assert [group.at(n) for n in range(5)] == pytest.approx([0.0, 0.2, 0.4, 1.2, 1.6])
    two = GroupDamage(("a",), 4, (1, 3), (0.1, 2.4), ((0, 1, 2, 3),), (0.0, 1.0, 2.0, 6.0, 8.0))
    # factors 0.1 and 0.4; between them the geometric mean 0.2
    assert [two.at(n) for n in range(5)] == pytest.approx([0.0, 0.1, 0.4, 2.4, 3.2])


def test_channels_are_removed_where_they_cost_least():
    """Equal sizes and costs: all of the cheap group goes first, down to its floor."""
    net, x = net_of_two(), torch.randn(64, 3, 9, 9)
    graph = dafp.trace(net, x)
    order = ((0, 1, 2, 3),)
    cheap = GroupDamage(("2",), 4, (2,), (0.001,), order, (0.0, 1.0, 2.0, 3.0, 4.0))
    dear = GroupDamage(("0",), 4, (2,), (1.0,), order, (0.0, 1.0, 2.0, 3.0, 4.0))
    plan = least_damage(DamageTable((dear, cheap), "test"), graph, 3 / 8)
    assert (plan.keep["0"], plan.keep["2"]) == ((0, 1, 2, 3), (3,))
    plan = least_damage(DamageTable((dear, cheap), "test"), graph, 3 / 8, min_channels=2)
    assert (len(plan.keep["0"]), plan.keep["2"]) == (3, (2, 3))


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
@pytest.mark.parametrize("target", [0.2, 0.5, 0.8])
def test_the_target_is_met_in_its_unit(unit, target):
    torch.manual_seed(0)
    model = dafp.models.build("vgg11", width=0.25).eval()
    x = torch.randn(16, 3, 32, 32)
    graph, table = table_of(model, x)
    plan = least_damage(table, graph, target, unit)
    assert dafp.selection.removed_share(graph, plan, unit) == pytest.approx(target, abs=0.01)
    rounded = least_damage(table, graph, target, unit, round_to=4)
    assert all(len(kept) % 4 == 0 for kept in rounded.keep.values())
    assert dafp.selection.removed_share(graph, rounded, unit) == pytest.approx(target, abs=0.04)


def test_a_measure_can_be_the_unit():
    torch.manual_seed(0)
    model, x = dafp.models.build("vgg11", width=0.25).eval(), torch.randn(8, 3, 32, 32)
    graph, table = table_of(model, x)
    macs = dafp.selection.Measure("own", lambda plan: 1 - plan.after.macs / plan.before.macs)
    plan = least_damage(table, graph, 0.5, macs)
    assert plan.after.macs / plan.before.macs == pytest.approx(0.5, abs=0.01)


def test_a_target_out_of_reach_says_how_far_it_goes():
    graph, table = table_of(net_of_two(), torch.randn(16, 3, 9, 9))
    with pytest.raises(
        TargetError, match=r"target=0\.9 of filters cannot be reached: at most 0\.75"
    ):
        least_damage(table, graph, 0.9)


def test_a_table_of_another_network_is_refused():
    _, table = table_of(net_of_two(), torch.randn(16, 3, 9, 9))
    other = nn.Sequential(nn.Conv2d(3, 7, 3), nn.ReLU(), nn.Conv2d(7, 4, 3))
    graph = dafp.trace(other, torch.randn(1, 3, 9, 9))
    with pytest.raises(PlanError, match="the damage table has 4 channels of '0', the graph 7"):
        least_damage(table, graph, 0.5)


@pytest.mark.parametrize(
    ("score", "words"),
    [
        (lambda model: 1 / 0, "the score function raised ZeroDivisionError"),
        (lambda model: "good", "the score function returned 'good'"),
        (lambda model: float("nan"), "the score function returned nan"),
        (lambda model: True, "the score function returned True"),
    ],
)
def test_a_score_function_that_gives_no_number_is_refused(score, words):
    with pytest.raises(PlanError, match=words):
        table_of(net_of_two(), torch.randn(16, 3, 9, 9), score=score)


@pytest.mark.parametrize("net", zoo.NETS, ids=lambda net: net.name)
def test_cost_by_widths_is_the_predicted_cost(net):
    graph = dafp.trace(net.model().eval(), net.example(), **net.kwargs)
    if not graph.groups or graph.label_index.selections:
        return  # a BN that all selections narrow is not linear in the widths
    flags = [torch.arange(g.size) < max(1, g.size // 2) for g in graph.groups]
    widths = torch.tensor([float(f.sum()) for f in flags], dtype=torch.double)
    predicted = graph.predict(flags)
    batch = graph.label_index.batch
    assert WidthCost(graph, "params")(widths) == pytest.approx(predicted.params)
    assert int(WidthCost(graph, "macs")(widths)) // batch == predicted.macs


def test_savings_are_the_differences_of_the_cost():
    graph, _ = table_of(net_of_two(), torch.randn(16, 3, 9, 9))
    cost = WidthCost(graph, "macs")
    widths = cost.sizes.clone()
    less = widths.clone()
    less[0] -= 1  # linear in one width
    assert float(cost.savings(widths)[0]) == pytest.approx(cost(widths) - cost(less))


class Halves(nn.Module):
    """Two convolutions whose outputs are joined and cut in the middle."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 6, 1), nn.Conv2d(3, 6, 1)
        self.c, self.d = nn.Conv2d(6, 4, 1), nn.Conv2d(6, 4, 1)

    def forward(self, x):
        left, right = torch.cat([self.a(x), self.b(x)], 1).relu().chunk(2, 1)
        return self.c(left), self.d(right)


def test_groups_that_must_stay_balanced_are_measured_together():
    net, x = Halves().eval(), torch.randn(32, 3, 6, 6)
    graph, table = table_of(net, x)
    assert balanced_units(graph) == [("a", "b")] == [group.names for group in table.groups]
    plan = least_damage(table, graph, 0.5, "macs")
    assert len(plan.keep["a"]) == len(plan.keep["b"]) == 3
