"""The methods that prune a trained network by its activations or by the loss without a channel."""

import pytest
import torch

import dafp
from dafp import methods
from dafp.methods import Task
from dafp.selection import removed_share
from dafp.training.config import Config
from support.training import graph_of, tiny_data, tiny_net


def task_of(net, **settings):
    return Task(net, graph_of(net), Config(batch_size=16, **settings), tiny_data())


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
@pytest.mark.parametrize("name", ["activation-norm", "loss-by-removal"])
def test_the_share_of_the_unit_is_removed(name, unit):
    task = task_of(tiny_net(widths=(16, 24)), method=name, target=0.5, unit=unit)
    plan = task.graph.resolve(methods.find(name).plan(task))
    assert removed_share(task.graph, plan, unit) == pytest.approx(0.5, abs=0.05)
    assert 0 < len(plan.keep["0"]) < 16


@pytest.mark.parametrize("name", ["activation-norm", "loss-by-removal"])
def test_in_every_layer_the_channels_with_the_lowest_scores_are_removed(name):
    net = tiny_net(widths=(6, 8)).eval()
    task = task_of(net, method=name, target=0.5)
    plan = methods.find(name).plan(task)
    data = task.calibration_data(100 if name == "activation-norm" else 10)
    scores = getattr(dafp.criteria, name.replace("-", "_"))(net, task.graph, data)
    for group, count in (("0", 3), ("3", 4)):
        assert plan.keep[group] == tuple(sorted(scores[group].topk(count).indices.tolist()))


def test_a_channel_that_is_never_active_goes_first():
    net = tiny_net(widths=(6, 8)).eval()
    with torch.no_grad():
        net[1].bias[4] = -100.0
    task = task_of(net, method="activation-norm", target=0.15)
    scores = dafp.criteria.activation_norm(net, task.graph, task.calibration_data())
    assert float(scores["0"][4]) == 0.0
    assert 4 not in methods.find("activation-norm").plan(task).keep["0"]
