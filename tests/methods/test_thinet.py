"""ThiNet: its choice and its rescaling, against hand-made and brute-force answers."""

import dataclasses
import itertools

import pytest
import torch

import dafp
from dafp.methods import Task, thinet
from dafp.methods.rescaling import damped, least_squares, rescalable_consumers, rescaled, sample
from dafp.runs import pipeline
from dafp.training.config import Config, Schedule
from support.training import graph_of, images, step, tiny_data, tiny_net


def trained_net(steps: int = 30):
    net = tiny_net()
    optimizer = torch.optim.SGD(net.parameters(), 0.05, momentum=0.9)
    for number in range(steps):
        step(net, optimizer, *images(number))
    return net.eval()


def task_of(net, **settings):
    config = Config(method="thinet", batch_size=16, **settings)
    return Task(net, graph_of(net), config, tiny_data())


# ---- the choice ----------------------------------------------------------------------------------


def test_thinet_prefers_channels_that_cancel_each_other():
    """The smallest alone is 1; with it, −1.2 leaves 0.2 and 1.1 would leave 2.1."""
    assert thinet.discard(torch.tensor([[1.0, -1.2, 1.1]]), 2) == [0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_every_channel_that_thinet_discards_is_the_best_next_one_by_brute_force(seed):
    parts = torch.randn(3, 9, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    chosen = []
    for _ in range(6):
        rest = [c for c in range(9) if c not in chosen]
        chosen.append(min(rest, key=lambda j: float(parts[:, [*chosen, j]].sum(1).norm())))
    assert thinet.discard(parts, 6) == chosen


def test_where_channels_are_orthogonal_thinets_set_is_the_best_of_all_sets():
    lengths = torch.tensor([3.0, 0.5, 2.0, 0.1, 1.0, 4.0], dtype=torch.double)
    turn = torch.linalg.qr(torch.randn(6, 6, dtype=torch.double))[0]
    parts = turn * lengths
    best = min(
        itertools.combinations(range(6), 3), key=lambda s: float(parts[:, list(s)].sum(1).norm())
    )
    assert tuple(sorted(thinet.discard(parts, 3))) == best == (1, 3, 4)


def test_thinet_drops_a_large_channel_whose_consumers_have_tiny_weights():
    net = trained_net()
    with torch.no_grad():
        net[0].weight[4] *= 100
        net[3].weight[:, 4] *= 1e-6
    task = task_of(net, target=2 / 14)
    assert 4 not in thinet.plan(task).keep["0"]
    assert len(thinet.plan(task).keep["0"]) == 5


class Given(Task):
    """A task that sees two positive signals, x and y, that have nothing to do with each other."""

    def calibration_data(self, per_class=10):
        return [(torch.rand(40, 3, 8, 8, generator=torch.Generator().manual_seed(0)), None)]


def test_thinet_samples_a_layer_after_the_one_before_is_rescaled():
    """The first layer outputs x, x, y and y/100; the second 1·x + 0.9·x and 1.5·y + 0.01·y/100.

    Half of the first goes: the last, and the second x. Rescaled, the second layer gives 1.9·x and
    1.5·y, so that y goes; without rescaling it would give x and 1.5·y, and x would go.
    """
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 1, bias=False), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 2, 1, bias=False), torch.nn.ReLU(),
        torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(2, 1, bias=False),
    ).eval()  # fmt: skip
    first = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0.01, 0]])
    with torch.no_grad():
        net[0].weight.copy_(first.view(4, 3, 1, 1))
        net[2].weight.copy_(torch.tensor([[1.0, 0.9, 0, 0], [0, 0, 1.5, 0.01]]).view(2, 4, 1, 1))
        net[6].weight.fill_(1.0)
    config = Config(method="thinet", target=0.5, compensate=False)
    plan = thinet.plan(Given(net, graph_of(net), config, tiny_data()))
    assert plan.keep == {"0": (0, 2), "2": (0,)}


def test_thinet_sees_ten_images_of_every_class_the_same_ones_every_time():
    task = task_of(tiny_net())
    first, second = task.calibration_data(), task.calibration_data()
    assert torch.cat([y for _, y in first]).bincount().tolist() == [10, 10, 10, 10]
    assert all(torch.equal(a[0], b[0]) for a, b in zip(first, second, strict=True))


# ---- the samples ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["3.weight", "8.weight"])
def test_the_parts_of_a_sampled_entry_sum_to_what_the_layer_gave_there(name):
    net, (x, _) = trained_net(), images(count=8)
    graph = graph_of(net)
    consumer = next(c for c in rescalable_consumers(net, graph) if c.weight == name)
    found = sample(net, [consumer], [x], 5, 0)[name]
    layer = net[int(name[0])]
    with torch.no_grad():
        out = net[: int(name[0]) + 1](x)
    bias = layer.bias.detach()[found.outputs] if layer.bias is not None else 0
    sums = found.parts.sum(1) + bias
    for row, (total, output) in enumerate(zip(sums, found.outputs, strict=True)):
        there = out[row // 5, output]
        assert float((there - total).abs().min()) < 1e-5
    assert len(sums) == 40
    assert sums.unique().numel() > 15


# ---- the solver ----------------------------------------------------------------------------------


def test_least_squares_by_hand():
    parts = torch.tensor([[1.0, 0], [0, 2], [1, 1]], dtype=torch.double)
    # normal equations: 2a + b = 5, a + 5b = 7: a = 2, b = 1
    goal = torch.tensor([2.0, 2, 3], dtype=torch.double)
    found = damped(parts, goal, 0.0)
    torch.testing.assert_close(found, torch.tensor([2.0, 1], dtype=torch.double))
    off = damped(parts, goal + torch.tensor([1.0, 0, 0]), 0.0)
    torch.testing.assert_close(off, torch.tensor([23 / 9, 8 / 9], dtype=torch.double))


def test_a_channel_that_says_nothing_keeps_its_weights():
    parts = torch.tensor([[1.0, 0], [2, 0]], dtype=torch.double)
    found = least_squares(parts, torch.tensor([3.0, 6], dtype=torch.double))
    assert found.tolist() == pytest.approx([3.0, 1.0], rel=1e-3)


def test_channels_that_say_nearly_the_same_get_no_huge_factors():
    """Noise of the goal lies along what tells the two apart: undamped, that is what is fitted."""
    generator = torch.Generator().manual_seed(0)
    one, differ, noise = torch.randn(3, 400, generator=generator, dtype=torch.double)
    parts = torch.stack([one, one + 1e-3 * differ], 1)
    goal = 2 * one + 0.3 * noise
    assert float(damped(parts, goal, 0.0).abs().max()) > 10
    found = least_squares(parts, goal)
    assert found.tolist() == pytest.approx([1.0, 1.0], abs=0.05)


def test_a_removed_twin_is_made_up_for_by_the_other():
    """Channel 5 equals channel 2 and has twice its weight: that of 2 must be multiplied by 3."""
    net, (x, _) = trained_net(), images(count=16)
    with torch.no_grad():
        net[0].weight[5] = net[0].weight[2]
        for tensor in (*net[1].parameters(), net[1].running_mean, net[1].running_var):
            tensor[5] = tensor[2]
        net[3].weight[:, 5] = 2 * net[3].weight[:, 2]
    graph = graph_of(net)
    plan = dafp.PruningPlan({"0": (0, 1, 2, 3, 4)}, {"0": 6})
    whole = rescaled(net, graph, plan, [x], False)
    factor = (whole[3].weight / net[3].weight)[:, :5].mean((0, 2, 3))
    torch.testing.assert_close(factor, torch.tensor([1.0, 1, 3, 1, 1]), rtol=0.02, atol=0.02)
    small = dafp.prune(whole, graph, plan)
    torch.testing.assert_close(small(x), net(x), rtol=0.02, atol=0.02)
    assert not torch.allclose(dafp.prune(net, graph, plan)(x), net(x), rtol=0.02, atol=0.02)


@pytest.mark.parametrize("compensate", [False, True])
def test_rescaling_brings_the_pruned_network_nearer_to_the_whole_one_on_images_it_has_not_seen(
    compensate,
):
    net, (x, _) = trained_net(), images(count=64)
    graph = graph_of(net)
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(net, graph), 0.5)
    fresh = images(seed=99)[0]
    plain = dafp.prune(net, graph, plan, compensate)
    small = dafp.prune(rescaled(net, graph, plan, [x], compensate), graph, plan)
    with torch.no_grad():
        far, near = ((m(fresh) - net(fresh)).square().mean() for m in (plain, small))
    assert float(near) < 0.8 * float(far)


@pytest.mark.parametrize("bias", [True, False])
def test_where_the_mean_given_back_is_all_that_was_lost_nothing_is_rescaled(bias):
    """Channel 1 is the constant 0.7; its share goes to the bias, or to the next running mean."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.Conv2d(4, 5, 3, bias=bias), torch.nn.BatchNorm2d(5), torch.nn.Flatten(),
    ).eval()  # fmt: skip
    with torch.no_grad():
        net[1].weight[1], net[1].bias[1] = 0.0, 0.7
    graph, x = graph_of(net), torch.randn(20, 3, 8, 8)
    plan = dafp.PruningPlan({"0": (0, 2, 3)}, {"0": 4})
    kept = net[3].weight.detach()[:, [0, 2, 3]]
    exact = rescaled(net, graph, plan, [x], compensate=True)[3].weight.detach()[:, [0, 2, 3]]
    torch.testing.assert_close(exact, kept, rtol=1e-3, atol=1e-4)
    forced = rescaled(net, graph, plan, [x], compensate=False)[3].weight.detach()[:, [0, 2, 3]]
    assert float((forced / kept - 1).abs().max()) > 0.05


def test_rescaling_leaves_the_model_it_was_given_and_consumers_that_lost_nothing_alone():
    net, (x, _) = trained_net(), images(count=16)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    graph = graph_of(net)
    whole = rescaled(net, graph, dafp.PruningPlan({"0": (0, 1, 2)}, {"0": 6}), [x], False)
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
    assert torch.equal(whole[8].weight, net[8].weight)
    assert not torch.equal(whole[3].weight, net[3].weight)


def test_any_method_can_be_reconstructed_by_a_setting(tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "load_data", lambda *args, **kwargs: tiny_data())
    config = Config(
        model="support.training:users_net", width=1.0, batch_size=16, threads=1, method="l1-norm",
        baseline=Schedule(4, 0.05), finetune=Schedule(1, 0.05),
    )  # fmt: skip
    pipeline.run(config, tmp_path / "plain")
    pipeline.run(dataclasses.replace(config, repair=True), tmp_path / "rebuilt")
    files = [tmp_path / name / "pruned.safetensors" for name in ("plain", "rebuilt")]
    plain, rebuilt = (dafp.load(f, pipeline.make_model(config, 4)) for f in files)
    assert dafp.plan_of(plain) == dafp.plan_of(rebuilt)
    assert torch.equal(plain[0].weight, rebuilt[0].weight)
    assert not torch.equal(plain[3].weight, rebuilt[3].weight)
