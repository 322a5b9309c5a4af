"""The method `evolution`: the images that score its population, and the plan it comes to."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import dafp
from dafp import methods
from dafp.methods import Task, evolution
from dafp.selection import removed_share
from dafp.training.config import Config
from support.training import graph_of, images, step, tiny_data, tiny_net


def trained_net(widths=(6, 8)):
    net = tiny_net(widths=widths)
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for number in range(20):
        step(net, optimizer, *images(number))
    return net.eval()


def task_of(net, data=None, **settings):
    config = Config(method="evolution", batch_size=16, **settings)
    return Task(net, graph_of(net), config, data or tiny_data())


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
def test_the_share_of_the_unit_is_removed_and_equal_seeds_agree(unit):
    task = task_of(trained_net((12, 16)), target=0.5, unit=unit)
    plan = task.graph.resolve(methods.find("evolution").plan(task))
    assert removed_share(task.graph, plan, unit) == pytest.approx(0.5, abs=0.05)
    assert methods.find("evolution").plan(task).keep == plan.keep


def test_networks_are_scored_on_validation_images_or_without_any_on_training_images():
    net = trained_net()
    x = torch.cat([x for x, _ in evolution.validation_data(task_of(net))])
    expected = torch.cat([x for x, _ in tiny_data().batches("val", batch_size=16)])
    assert torch.equal(x, expected)
    few = task_of(net, tiny_data(val=0))
    labels = torch.cat([y for _, y in evolution.validation_data(few)])
    assert len(labels) == 64
    assert labels.bincount().tolist() == [16] * 4


def test_in_every_layer_the_channels_without_which_the_loss_is_smallest_go_first():
    task = task_of(trained_net(), target=0.5)
    plan = evolution.plan(task)
    scores = dafp.criteria.loss_by_removal(
        task.model, task.graph, task.calibration_data(), loss=cross_entropy
    )
    for name, kept in plan.keep.items():
        assert set(kept) == set(scores[name].topk(len(kept)).indices.tolist())
