"""Bayesian pruning: the divergence, the gradients of the noise, and what is closed when."""

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from dafp.methods import Task, bayes
from dafp.selection import removed_share
from dafp.training.config import Config, Schedule
from support.training import graph_of, images, step, tiny_data, tiny_net


def hook_of(net, epochs=5, **settings):
    sparse = Schedule(epochs, 0.05, ())
    config = Config(method="bayes", batch_size=16, sparse=sparse, target=0.5, **settings)
    task = Task(net, graph_of(net), config, tiny_data())
    optimizer = SGD(net.parameters(), 0.05)
    return task, optimizer, bayes.Noise(task, optimizer)


def test_the_divergence_is_the_least_of_all_priors_around_zero():
    """KL(N(μ, σ²) ‖ N(0, s²)) = log s/σ + (σ² + μ²)/(2s²) − ½, for a grid of s²."""
    prior = torch.logspace(-4, 3, 20001, dtype=torch.double)
    for mean, variance in ((1.0, 0.1), (0.2, 0.5), (-3.0, 2.0), (0.0, 1.0)):
        each = 0.5 * (prior / variance).log() + (variance + mean**2) / (2 * prior) - 0.5
        found = bayes.divergence(torch.tensor(mean).double(), torch.tensor(variance).double().log())
        assert float(found) == pytest.approx(float(each.min()), abs=1e-5)


def test_the_gradients_of_mean_and_variance_are_those_of_loss_and_divergence():
    """Against autograd through a network whose scales are multiplied by the noise."""
    net = tiny_net().train()
    _, optimizer, hook = hook_of(net)
    x, y = images()
    mean = {n: v.clone().requires_grad_() for n, v in hook.mean.items()}
    spread = {n: v.clone().requires_grad_() for n, v in hook.log_variance.items()}
    tensors = dict(net.named_parameters())
    changed = dict(tensors)
    total = 0.0
    for name, layer in (("0", "1"), ("3", "4")):
        theta = mean[name] + torch.exp(0.5 * spread[name]) * hook.noise[name]
        assert bool((theta.abs() > bayes.SMALL).all())
        for tensor in (f"{layer}.weight", f"{layer}.bias"):
            changed[tensor] = tensors[tensor] * theta
        total = total + bayes.divergence(mean[name], spread[name]).sum() / 64
    for handle in hook.handles:
        handle.remove()
    out = torch.func.functional_call(net, changed, (x,))
    (cross_entropy(out, y) + total).backward()
    expected = {n: (mean[n].grad.clone(), spread[n].grad.clone()) for n in mean}
    optimizer.zero_grad()

    net = tiny_net().train()
    _, optimizer, hook = hook_of(net)
    hook.adam.step = lambda: None  # the gradients are looked at, not used
    step(net, optimizer, x, y)
    for name, (by_mean, by_spread) in expected.items():
        torch.testing.assert_close(hook.mean[name].grad, by_mean, rtol=1e-3, atol=1e-6)
        torch.testing.assert_close(hook.log_variance[name].grad, by_spread, rtol=1e-3, atol=1e-6)


def test_the_noise_is_there_in_training_only_and_the_mean_in_evaluation():
    net = tiny_net()
    plain = tiny_net().eval()
    _, _, hook = hook_of(net)
    x, _ = images()
    with torch.no_grad():
        torch.testing.assert_close(net.eval()(x), plain(x))
        hook.mean["0"].mul_(2.0)
        for tensor in (plain[1].weight, plain[1].bias):
            tensor.mul_(2.0)
        torch.testing.assert_close(net(x), plain(x))
        assert not torch.allclose(net.train()(x), plain.train()(x), atol=1e-2)


@torch.no_grad()
def test_layers_are_closed_one_after_the_other_by_signal_to_noise():
    net = tiny_net()
    task, _, hook = hook_of(net)
    hook.log_variance["0"].copy_(torch.tensor([0.0, -5.0, 0.5, -5.0, -5.0, 0.7]))
    hook.log_variance["3"].copy_(torch.tensor([0.1, 0.2, -5.0, -5.0, 0.3, -5.0, -5.0, 0.6]))
    hook.mean["0"].copy_(torch.tensor([1.0, 1.0, 1.0, 3.0, 1.0, 1.0]))
    gamma = net[1].weight.detach().clone()
    x, _ = images()
    rows = [hook.end_epoch()]
    assert hook.closed == ["0"]
    assert hook.gone["0"].tolist() == [True, False, True, False, False, True]
    assert float(net[1].weight[3]) == pytest.approx(3 * float(gamma[3]))
    assert float(net[1].weight[1]) == pytest.approx(float(gamma[1]))
    assert net[1].weight[[0, 2, 5]].tolist() == [0.0] * 3
    rows += [hook.end_epoch() for _ in range(4)]
    assert [row["sparsity"] for row in rows] == pytest.approx([3 / 14] * 2 + [0.5] * 3)
    assert hook.gone["3"].nonzero().flatten().tolist() == [0, 1, 4, 7]
    plan = task.graph.resolve(bayes.plan(task))
    assert plan.keep == {"0": (1, 3, 4), "3": (2, 3, 5, 6)}
    # the noise is gone: a second call gives the same
    assert not any(module._forward_hooks for module in net.modules())
    assert torch.equal(net.train()(x), net(x))


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
def test_training_arrives_at_the_share_of_the_unit(unit):
    net = tiny_net(widths=(12, 16))
    task, optimizer, hook = hook_of(net, unit=unit)
    x, y = images()
    net.train()
    for _ in range(5):
        for part in range(4):
            step(net, optimizer, x[16 * part : 16 * part + 16], y[16 * part : 16 * part + 16])
        row = hook.end_epoch()
    assert row["sparsity"] == pytest.approx(0.5, abs=0.05)
    plan = task.graph.resolve(bayes.plan(task))
    assert removed_share(task.graph, plan, unit) == pytest.approx(0.5, abs=0.05)
    assert 0 < len(plan.keep["0"]) < 12


def test_a_step_raises_the_noise_of_a_channel_that_the_loss_does_not_need():
    net = tiny_net()
    with torch.no_grad():
        net[3].weight[:, 2] = 0  # nobody uses channel 2
    _, optimizer, hook = hook_of(net)
    net.train()
    for number in range(20):
        step(net, optimizer, *images(number))
        with torch.no_grad():
            net[3].weight[:, 2] = 0
    ratio = hook.mean["0"].square() * torch.exp(-hook.log_variance["0"])
    assert int(ratio.argmin()) == 2
    assert float(ratio[2]) < 1 / bayes.START
