"""`dafp.slim`: every network of the zoo with calibration data, and what can be asked of it."""

import pytest
import torch

import dafp
from dafp import one_call
from dafp.calibration.inputs import read_inputs
from dafp.errors import PlanError
from dafp.recovery.damage import output_damage
from support import zoo

SLOW = pytest.mark.slow(reason="the networks run in `make test` with targets of multiply-adds")
HELD_OUT = range(1000, 1032)  # seeds of inputs
CASES = [
    *(pytest.param(net, "macs", id=f"{net.name}-macs") for net in zoo.NETS),
    *(
        pytest.param(net, unit, id=f"{net.name}-{unit}", marks=SLOW)
        for net in zoo.NETS
        for unit in ("params", "filters")
    ),
]


@pytest.mark.parametrize(("net", "unit"), CASES)
def test_every_network_is_slimmed_with_data_to_its_target(net, unit):
    model, example = net.model().eval(), net.example()
    graph = dafp.trace(model, example, **net.kwargs)
    target = 0.5 * dafp.selection.reach(graph, unit) if graph.groups else 0.0
    if target < 0.01:
        return  # nothing to prune
    data = [net.example(seed) for seed in range(1, 9)]
    small = dafp.slim(model, example, target, unit, data=data, **net.kwargs)
    plan = dafp.plan_of(small)
    coarse = 1 / min(g.size for g in graph.groups)  # a step of the smallest group
    assert dafp.selection.removed_share(graph, plan, unit) == pytest.approx(target, abs=coarse)
    assert sum(map(len, plan.keep.values())) < sum(plan.sizes.values())
    assert_no_worse_than_masked(small, model, graph, [net.example(seed) for seed in HELD_OUT])


def assert_no_worse_than_masked(small, model, graph, batches):
    """On inputs that were not used, outputs are no further from the original's than masked ones."""
    damage = output_damage(model, read_inputs(model, batches, "the test"), logits=False)
    masked = damage(dafp.mask(model, graph, dafp.plan_of(small)))
    assert damage(small) <= 1.001 * masked + 1e-8


@pytest.mark.parametrize("criterion", ["taylor", "shift_aware", "l1_norm"])
def test_a_criterion_gets_the_labels_that_it_needs(criterion):
    model, x = vgg()
    data = iter([(x[:8], torch.arange(8)), (x[8:], torch.arange(16) % 10)])
    small = dafp.slim(model, x[:1], 0.5, criterion=criterion, data=data, fast=True)
    assert dafp.slim_report(small).criterion == criterion
    assert sum(map(len, dafp.plan_of(small).keep.values())) == 344
    with pytest.raises(PlanError, match="labelled"):
        dafp.slim(model, x[:1], criterion="taylor")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_network_is_slimmed_and_keeps_its_type(dtype):
    model, x = vgg()
    model = model.to(dtype)
    small = dafp.slim(model, x[:1].to(dtype), 0.5, "macs", data=[x.to(dtype)])
    assert {p.dtype for p in small.parameters()} == {dtype}
    report = dafp.slim_report(small)
    assert report.rebuilt < report.as_cut
    assert report.plan.after.macs / report.plan.before.macs == pytest.approx(0.5, abs=0.01)


def test_one_measurement_serves_every_target(monkeypatch):
    model, x = vgg()
    table = dafp.slim_report(dafp.slim(model, x[:1], 0.3, "macs", data=[x])).table
    again = dafp.slim(model, x[:1], 0.6, "macs", data=[x])
    monkeypatch.setattr(one_call, "measure_damage", None)  # it would raise
    same = dafp.slim(model, x[:1], 0.6, "macs", data=[x], table=table)
    assert dafp.plan_of(same) == dafp.plan_of(again)
    assert dafp.plan_of(same).after.macs / dafp.plan_of(same).before.macs < 0.42


def vgg():
    torch.manual_seed(0)
    return dafp.models.build("vgg11", width=0.25).eval(), torch.randn(24, 3, 32, 32)


def test_the_report_says_what_was_done_and_what_each_step_brought():
    model, x = vgg()
    small = dafp.slim(model, x[:1], 0.5, "macs", data=[x], logits=True)
    report = dafp.slim_report(small)
    assert report.plan == dafp.plan_of(small)
    assert report.rebuilt < report.as_cut
    assert report.expected > 0
    assert report.criterion == "reconstruction_error"
    assert report.reconstruction.in_order
    assert "channels by reconstruction_error, widths by measured damage" in str(report)
    assert "KL divergence" in str(report)
    assert report.plan.after.macs / report.plan.before.macs == pytest.approx(0.5, abs=0.01)


def test_fast_and_rule_do_not_measure_widths():
    model, x = vgg()
    small = dafp.slim(model, x[:1], 0.5, data=[x], fast=True)
    report = dafp.slim_report(small)
    assert report.table is None
    shares = {round(len(k) / report.plan.sizes[n], 2) for n, k in report.plan.keep.items()}
    assert max(shares) - min(shares) < 0.1
    ranked = dafp.slim(
        model, x[:1], 0.5, criterion="l1_norm", data=[x], rule=dafp.selection.global_ranking
    )
    assert dafp.slim_report(ranked).criterion == "l1_norm"


def test_progress_is_told_of_every_step():
    model, x = vgg()
    seen = []
    dafp.slim(model, x[:1], 0.5, data=[x], progress=lambda *event: seen.append(event))
    groups = len(dafp.trace(model, x[:1]).groups)
    assert [event for event in seen if event[0] == "widths"][-1] == ("widths", groups, groups)
    assert {event[0] for event in seen} == {"scores", "widths", "rebuilding", "verifying"}


def test_without_data_options_that_need_it_are_refused():
    model, x = vgg()
    with pytest.raises(PlanError, match="concern calibration data: give data=batches"):
        dafp.slim(model, x[:1], fast=True)
    with pytest.raises(PlanError, match=r"not a result of dafp\.slim"):
        dafp.slim_report(model)


@pytest.mark.parametrize("with_data", [True, False])
def test_what_is_slimmed_in_inference_mode_can_be_trained(with_data):
    model, x = vgg()
    with torch.inference_mode():
        small = dafp.slim(model, x[:1], 0.5, "macs", data=[x.clone()] if with_data else None)
    small(x).sum().backward()
    assert all(p.grad is not None for p in small.parameters())
    plan = dafp.plan_of(small)
    assert plan.after.macs / plan.before.macs == pytest.approx(0.5, abs=0.01)


def test_without_data_widths_differ_by_layer_and_a_rule_can_be_chosen():
    model, x = vgg()
    small = dafp.slim(model, x[:1], 0.5)
    assert "widths by expected damage" in str(dafp.slim_report(small))
    assert sum(map(len, dafp.plan_of(small).keep.values())) == 344
    same = dafp.slim(model, x[:1], 0.5, rule=dafp.selection.uniform)
    assert "widths by a rule" in str(dafp.slim_report(same))
    shares = {round(len(k) / dafp.plan_of(same).sizes[n], 1) for n, k in
              dafp.plan_of(same).keep.items()}  # fmt: skip
    assert shares == {0.5}


@pytest.mark.parametrize("channels_last", [True, False])
def test_batches_of_one_image_give_what_one_batch_gives(channels_last):
    model, x = vgg()
    layout = torch.channels_last if channels_last else torch.contiguous_format
    model, x = model.to(memory_format=layout), x.contiguous(memory_format=layout)
    ones = dafp.slim(model, x[:1], 0.5, "macs", data=x.split(1), fast=True)
    whole = dafp.slim(model, x[:1], 0.5, "macs", data=[x], fast=True)
    assert dafp.plan_of(ones).after.macs / dafp.plan_of(ones).before.macs < 0.52
    assert dafp.slim_report(ones).rebuilt < dafp.slim_report(ones).as_cut
    assert dafp.slim_report(ones).rebuilt == pytest.approx(dafp.slim_report(whole).rebuilt, rel=0.2)


@pytest.mark.parametrize("with_data", [True, False])
def test_a_target_may_be_an_amount_that_is_left(with_data):
    model, x = vgg()
    target = dafp.selection.Target("params", left=300_000)
    small = dafp.slim(model, x[:1], target, data=[x] if with_data else None)
    assert dafp.cost(small, x[:1]).params == pytest.approx(300_000, rel=0.02)
    with pytest.raises(PlanError, match="to_latency"):
        dafp.slim(model, x[:1], dafp.selection.Target("latency", share=0.5))
