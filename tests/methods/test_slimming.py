"""Network Slimming, its ablations and dafp by hand: what a step pulls, what P is, what goes."""

import dataclasses

import pytest
import torch
from torch.optim import SGD

from dafp import methods
from dafp.errors import TrainingError
from dafp.methods import Task
from dafp.runs.job_hash import config_hash, stage_hash
from dafp.training.config import Config, Schedule
from support.training import graph_of, tiny_data, tiny_net

CONFIG = Config(sparse=Schedule(4, 0.05, ()), batch_size=16)
ONES = [[1.0] * 4] * 2


def task_of(scales, consumers, *, keep=(), **settings) -> Task:
    """Two layers of four channels; γ, and ‖W‖ of the weights that consume them, are as given."""
    net = tiny_net(widths=(4, 4))
    with torch.no_grad():
        for norm, values in zip((net[1], net[4]), scales, strict=True):
            norm.weight.copy_(torch.tensor(values))
        for consumer, values in zip((net[3], net[8]), consumers, strict=True):
            flat = consumer.weight.zero_().view(4, 4, -1)  # consumer × channel × place
            flat[0, :, 0] = torch.tensor(values)
    config = dataclasses.replace(CONFIG, **settings)
    return Task(net, graph_of(net, keep=keep), config, tiny_data())


# ---- the penalty ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["slm", "slm+da", "slm+da+local"])
@pytest.mark.parametrize(
    ("settings", "penalty"),
    [
        ({"model": "vgg16"}, 1e-4),
        ({"model": "preresnet20"}, 1e-5),
        ({"model": "vgg16", "step": 0.02}, 0.02),
        ({"model": "preresnet20", "step": 0.02}, 0.02),
    ],
)
def test_a_step_moves_every_scale_by_lr_times_lambda_towards_zero(name, settings, penalty):
    gammas = [[0.01, -0.02, 0.0, -0.005], [-0.03, 0.004, 0.01, 0.02]]
    task = task_of(gammas, ONES, **settings)
    optimizer = SGD(task.model.parameters(), 0.1)
    hook = methods.find(name).train(task, optimizer)
    far = 0.1 * penalty
    still(task.model, optimizer)
    first, second = task.model[1].weight.tolist(), task.model[4].weight.tolist()
    # a scale at zero has no sign: it stays
    assert first == pytest.approx([0.01 - far, -0.02 + far, 0.0, -0.005 + far], abs=1e-8)
    assert second == pytest.approx([-0.03 + far, 0.004 - far, 0.01 - far, 0.02 - far], abs=1e-8)
    assert hook.end_epoch()["penalty"] == penalty


def test_slimming_pulls_nothing_but_the_scales_of_channels_that_can_go():
    task = task_of(ONES, ONES, keep=("0",), step=0.5)
    before = {name: value.clone() for name, value in task.model.named_parameters()}
    optimizer = SGD(task.model.parameters(), 0.1)
    methods.find("slm").train(task, optimizer)
    still(task.model, optimizer)
    moved = [n for n, value in task.model.named_parameters() if not torch.equal(value, before[n])]
    assert moved == ["4.weight"]
    assert task.model[4].weight.tolist() == pytest.approx([0.95] * 4)


def still(net, optimizer) -> None:
    """A step at which the loss asks for nothing."""
    for weight in net.parameters():
        weight.grad = torch.zeros_like(weight)
    optimizer.step()


# ---- P -------------------------------------------------------------------------------------------

# at most a hundredth of the best of its layer is
#   by |γ|:      .01 of 2 (.04 is a fiftieth), and .001 and .002 of 1: three of eight
#   by |γ|·‖W‖:  2 .001 1 .1: the second, and .1 .002 1 .5: the second: two of eight
SMALL = {
    "scales": [[2.0, 0.04, 1.0, -0.01], [0.001, -0.002, 1.0, 0.5]],
    "consumers": [[1.0, 0.025, 1.0, 10.0], [100.0, 1.0, 1.0, 1.0]],
}


@pytest.mark.parametrize("name", ["slm", "slm+da", "slm+da+local"])
def test_slimming_tells_the_share_of_filters_below_a_hundredth_by_both_scores(name):
    """Whatever p and the unit of the target are: one training serves them all."""
    task = task_of(**SMALL, p=0.6, unit="macs", step=0.25)
    hook = methods.find(name).train(task, SGD(task.model.parameters(), 0.1))
    assert hook.end_epoch() == {
        "penalty": 0.25,
        "sparsity_bn_scale": 3 / 8,
        "sparsity_dependency_aware": 2 / 8,
    }


@pytest.mark.parametrize(("criterion", "share"), [("bn_scale", 3 / 8), ("dependency_aware", 2 / 8)])
def test_dafp_trains_by_the_criterion_of_the_configuration(criterion, share):
    task = task_of(**SMALL, criterion=criterion)
    sparse = methods.find("dafp").train(task, SGD(task.model.parameters(), 0.1))
    assert sparse.sparsity() == share


def test_dafp_trains_with_every_setting_of_the_configuration():
    task = task_of(**SMALL, target=0.3, p=0.03, unit="params", step=1e-3, sparse=Schedule(7))
    sparse = methods.find("dafp").train(task, SGD(task.model.parameters(), 0.1))
    assert (sparse.target, sparse.epochs, sparse.p, sparse.unit) == (0.3, 7, 0.03, "params")
    assert sparse.controller.step == 1e-3


# ---- the plan ------------------------------------------------------------------------------------

# |γ|:       1  2  3  4        6  2.5 20 12
# ‖W‖:       8  2  1  .5       1  4   3  .125
# |γ|·‖W‖:   8  4  3  2        6  10  60 1.5
# of best:   1  .5 .4 .25     .1  .17 1  .025
SCALES = [[1.0, -2.0, 3.0, 4.0], [-6.0, 2.5, 20.0, 12.0]]
CONSUMERS = [[8.0, -2.0, 1.0, 0.5], [1.0, 4.0, -3.0, 0.125]]


@pytest.mark.parametrize(
    ("name", "criterion", "keep"),
    [
        ("slm", "dependency_aware", {"0": (3,), "3": (0, 2, 3)}),  # 1, 2, 2.5 and 3 go
        ("slm+da", "dependency_aware", {"0": (0,), "3": (0, 1, 2)}),  # 1.5, 2, 3 and 4 go
        ("slm+da+local", "dependency_aware", {"0": (0, 1, 2), "3": (2,)}),  # .025, .1, .17, .25
        ("dafp", "dependency_aware", {"0": (0, 1, 2), "3": (2,)}),
        ("dafp", "bn_scale", {"0": (2, 3), "3": (2, 3)}),  # .125, .25, .3 and .5 of the best go
    ],
)
def test_half_of_eight_filters_by_hand(name, criterion, keep):
    task = task_of(SCALES, CONSUMERS, method=name, criterion=criterion, target=0.5)
    assert methods.find(name).plan(task).keep == keep


def test_dafp_prunes_at_p_itself_if_p_may_not_move():
    """.025, .1 and .17 of the best are at most .2; half of eight would be four."""
    task = task_of(SCALES, CONSUMERS, target=0.5, p=0.2, move_p=False)
    assert methods.find("dafp").plan(task).keep == {"0": (0, 1, 2, 3), "3": (2,)}


@pytest.mark.parametrize(
    ("name", "settings", "found"),
    [
        ("dafp", {"move_p": True}, 0.25),  # that of the fourth filter, the largest removed
        ("slm+da+local", {"move_p": False}, 0.25),  # it has no p of its own
        ("dafp", {"move_p": False}, 0.2),
    ],
)
def test_the_p_at_which_a_plan_was_made_is_known(name, settings, found):
    task = task_of(SCALES, CONSUMERS, method=name, target=0.5, p=0.2, **settings)
    method = methods.find(name)
    assert method.threshold(task, method.plan(task)) == pytest.approx(found)


def test_dafp_can_select_by_one_ranking_of_all_layers():
    """1.5, 2, 3 and 4 go; the threshold in each layer removes others."""
    task = task_of(SCALES, CONSUMERS, target=0.5, rule="global_ranking")
    method = methods.find("dafp")
    plan = method.plan(task)
    assert plan.keep == {"0": (0,), "3": (0, 1, 2)}
    assert method.threshold(task, plan) is None


def test_the_rule_of_selection_leaves_the_sparse_training_as_it_is():
    ours, other = Config(), Config(rule="global_ranking")
    assert stage_hash(ours, "sparse") == stage_hash(other, "sparse")
    assert config_hash(ours) != config_hash(other)


def test_a_ranking_has_no_threshold_to_prune_at():
    with pytest.raises(TrainingError, match="rule='global_ranking' has no threshold p: set move_p"):
        Config(rule="global_ranking", move_p=False)
