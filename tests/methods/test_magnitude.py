"""Norms of filters and chance by hand: what goes from a trained network as it is."""

import dataclasses

import pytest
import torch

from dafp.methods import Task, magnitude
from dafp.selection import removed_share
from dafp.training.config import Config
from support.training import graph_of, tiny_data, tiny_net

CONFIG = Config(batch_size=16)


def task_of(widths=(4, 4), **settings) -> Task:
    net = tiny_net(widths=widths)
    return Task(net, graph_of(net), dataclasses.replace(CONFIG, **settings), tiny_data())


def test_l1_norm_takes_the_least_sums_of_absolute_weights_of_each_layer():
    task = task_of(method="l1-norm", target=0.5)
    filters = torch.tensor(
        [
            [3.0, 0, 0, 0],  # L1 3, L2 3
            [1, -1, 1, -1],  # L1 4, L2 2
            [5, 0, 0, 0],  # L1 5, L2 5
            [1.4, 1.4, -1.4, 1.4],  # L1 5.6, L2 2.8
        ]
    )
    with torch.no_grad():
        task.model[0].weight.zero_().view(4, -1)[:, :4] = filters
        # louder: a ranking over both layers would take the whole first one
        task.model[3].weight.zero_().view(4, -1)[:, :4] = 10 * filters[[2, 1, 3, 0]]
    assert magnitude.L1_NORM.plan(task).keep == {"0": (2, 3), "3": (0, 2)}


@pytest.mark.parametrize("target", [0.25, 0.5, 0.75])
def test_chance_takes_the_share_asked_for_from_every_layer(target):
    task = task_of((8, 16), method="random", target=target)
    plan = magnitude.RANDOM.plan(task)
    assert removed_share(task.graph, plan, "filters") == target
    assert {name: len(kept) for name, kept in plan.keep.items()} == {
        "0": round(8 * (1 - target)), "3": round(16 * (1 - target)),
    }  # fmt: skip


def test_the_same_seed_draws_the_same_filters_and_another_seed_others():
    plans = [
        magnitude.RANDOM.plan(task_of((8, 16), method="random", seed=seed)) for seed in (0, 0, 1, 2)
    ]
    assert plans[0] == plans[1]
    assert len({tuple(plan.keep.values()) for plan in plans}) == 3


def test_what_is_drawn_does_not_depend_on_the_weights_nor_on_torchs_own_seed():
    first = magnitude.RANDOM.plan(task_of((8, 16), method="random", seed=5))
    task = task_of((8, 16), method="random", seed=5)
    torch.manual_seed(77)
    with torch.no_grad():
        for weight in task.model.parameters():
            weight.copy_(torch.randn_like(weight))
    assert magnitude.RANDOM.plan(task) == first
