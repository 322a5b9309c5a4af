"""SSR and BN-ISTA by hand: what the proximal steps yield, what is drawn where, what is undone."""

import dataclasses

import pytest
import torch
from torch.optim import SGD

import dafp
from dafp import methods
from dafp.methods import Task, bn_ista, ssr
from dafp.training.config import Config, Schedule
from support.training import graph_of, images, step, tiny_data, tiny_net

CONFIG = Config(sparse=Schedule(4, 0.05, ()), batch_size=16)


def task_of(**settings):
    net = tiny_net()
    return Task(net, graph_of(net), dataclasses.replace(CONFIG, **settings), tiny_data())


def same_after_a_restart(build, whole: int = 12, cut: int = 5) -> None:
    def steps(count, state=None):
        task = task_of()
        optimizer = SGD(task.model.parameters(), 0.05, momentum=0.9)
        if state is not None:
            task.model.load_state_dict(state[0])
        hook = build(task, optimizer)
        if state is not None:
            optimizer.load_state_dict(state[1])
            hook.load_state_dict(state[2])
        for _ in range(count):
            step(task.model, optimizer, *images())
        return task.model.state_dict(), optimizer.state_dict(), hook.state_dict()

    at_once, in_parts = steps(whole), steps(whole - cut, steps(cut))
    for name, value in at_once[0].items():
        torch.testing.assert_close(in_parts[0][name], value, rtol=0, atol=0)


# ---- SSR -----------------------------------------------------------------------------------------

ROWS = torch.tensor([[3.0, 4.0], [0.6, 0.8], [0.0, 2.0]])  # lengths 5, 1 and 2
SAME = torch.tensor([0.2, 0.2, 0.2])


def test_l21_shortens_every_row_by_lambda_over_rho():
    found = ssr.l21(ROWS, SAME, 0.1)  # by 2: 5 → 3, 1 → 0, 2 → 0
    torch.testing.assert_close(found, torch.tensor([[1.8, 2.4], [0.0, 0.0], [0.0, 0.0]]))


def test_l20_keeps_a_row_whole_if_its_square_exceeds_two_lambda_over_rho():
    found = ssr.l20(ROWS, SAME, 0.1)  # 25 > 4, 1 < 4, and 4 is not more than 4
    torch.testing.assert_close(found, torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.0, 0.0]]))


@pytest.mark.parametrize("proximal", [ssr.l21, ssr.l20])
def test_the_proximal_point_minimises_what_it_should(proximal):
    """Against points around it, for one row at a time."""
    penalty, rho = 0.3, 0.2

    def value(f, t):
        size = f.norm() if proximal is ssr.l21 else float(bool(f.any()))
        return float(penalty * size + rho / 2 * (t - f).square().sum())

    for t in (ROWS[0], ROWS[1], ROWS[2], torch.tensor([1.0, 1.6])):
        best = value(proximal(t.unsqueeze(0), torch.tensor([penalty]), rho)[0], t)
        others = [value(t * k / 20, t) for k in range(25)]
        assert best <= min(others) + 1e-6


@pytest.mark.parametrize("proximal", [ssr.l21, ssr.l20])
def test_the_least_lambda_that_zeroes_a_row(proximal):
    penalty = ssr.penalty_for(2.0, proximal, 0.1)
    assert penalty == pytest.approx(0.2)
    row = torch.tensor([[0.0, 2.0]])
    assert not bool(proximal(row, torch.tensor([penalty * 1.001]), 0.1).any())
    assert bool(proximal(row, torch.tensor([penalty * 0.999]), 0.1).any())


def test_an_update_sets_f_to_zero_for_the_shortest_rows_and_raises_y_by_rho_times_the_gap():
    task = task_of()
    hook = ssr.SSR(task, SGD(task.model.parameters(), 0.05, momentum=0.9), ssr.l20)
    scale = torch.tensor([1.0, 6, 2, 5, 3, 4]).view(-1, 1, 1, 1)
    other = torch.tensor([8.0, 7, 6, 5, 4, 3, 2, 1]).view(-1, 1, 1, 1)
    with torch.no_grad():
        for conv, factor in ((task.model[0], scale), (task.model[3], other)):
            unit = conv.weight / conv.weight.flatten(1).norm(dim=1).view(-1, 1, 1, 1)
            conv.weight.copy_(unit * factor)
    hook.step = hook.steps
    hook._update()
    gone = {name: flags.nonzero().flatten().tolist() for name, flags in hook._gone().items()}
    # in units of the layer's mean, 3.5 and 4.5: .29 .57 .86 | .22 .44 .67 .89
    assert gone == {"0": [0, 2, 4], "3": [4, 5, 6, 7]}
    rows = task.model[0].weight.detach().flatten(1)
    torch.testing.assert_close(hook.dual["0"][0], hook.rho * rows[0])
    torch.testing.assert_close(hook.copy["0"][1], rows[1])
    assert not bool(hook.dual["0"][1].any())


def test_of_rows_that_stay_l21_takes_at_most_a_hundredth_of_the_mean_length():
    task = task_of()
    hook = ssr.SSR(task, SGD(task.model.parameters(), 0.05, momentum=0.9), ssr.l21)
    before = task.model[0].weight.detach().flatten(1).norm(dim=1)
    hook.step = hook.steps
    hook._update()
    after = hook.copy["0"].norm(dim=1)
    stays = after > 0
    assert 0 < int(stays.sum()) < 6
    lost = (before - after)[stays]
    torch.testing.assert_close(lost, torch.full_like(lost, 0.01 * float(before.mean())))


def test_the_gradient_takes_rho_times_the_gap_plus_y():
    task = task_of()
    optimizer = SGD(task.model.parameters(), 0.05, momentum=0.9)
    hook = ssr.SSR(task, optimizer, ssr.l21)
    conv = task.model[0]
    conv.weight.grad = torch.full_like(conv.weight, 0.25)
    hook.copy["0"] = torch.zeros_like(hook.copy["0"])
    hook.dual["0"] = torch.full_like(hook.dual["0"], 0.5)
    hook._draw(optimizer, (), {})
    torch.testing.assert_close(conv.weight.grad, 0.75 + hook.rho * conv.weight.detach())


def test_rows_whose_copy_is_zero_are_zero_after_the_last_epoch():
    task = task_of()
    optimizer = SGD(task.model.parameters(), 0.05, momentum=0.9)
    hook = ssr.SSR(task, optimizer, ssr.l20)
    for _ in range(4):
        for _ in range(4):
            step(task.model, optimizer, *images())
        record = hook.end_epoch()
    assert record["sparsity"] == 0.5
    dead = [(task.model[i].weight.flatten(1) == 0).all(1).sum().item() for i in (0, 3)]
    assert sum(dead) == 7
    keep = ssr.plan(task).keep
    assert [6 - len(keep["0"]), 8 - len(keep["3"])] == dead


@pytest.mark.parametrize("proximal", [ssr.l21, ssr.l20])
def test_ssr_goes_on_after_a_restart_as_if_nothing_had_happened(proximal):
    same_after_a_restart(lambda task, optimizer: ssr.SSR(task, optimizer, proximal))


# ---- BN-ISTA -------------------------------------------------------------------------------------


def test_a_layers_lambda_is_its_map_and_its_filter():
    task = task_of()
    costs = bn_ista.memory_costs(task.model, task.graph)
    assert costs == {"0": 8 * 8 + 9 * 3, "3": 8 * 8 + 9 * 6}


def test_a_step_is_soft_thresholding_by_each_layers_own_lambda():
    task = task_of()
    optimizer = SGD(task.model.parameters(), 0.05)
    hook = bn_ista.Ista(task, optimizer)
    first, second = task.model[1].weight, task.model[4].weight
    before = first.detach().clone(), second.detach().clone()
    rho = hook.rho
    for p in task.model.parameters():
        p.grad = torch.zeros_like(p)
    first.grad.fill_(0.5)
    hook.every = 10**9  # ρ stays
    optimizer.step()
    mean = (91 + 118) / 2
    for now, old, grad, cost in (
        (first, before[0], 0.5, 91 / mean), (second, before[1], 0.0, 118 / mean),
    ):  # fmt: skip
        moved = old - 0.05 * grad
        soft = moved.sign() * (moved.abs() - 0.05 * rho * cost).clamp(min=0)
        torch.testing.assert_close(now.detach(), soft)


def with_zero_gradients():
    task = task_of()
    optimizer = SGD(task.model.parameters(), 0.05)
    hook = bn_ista.Ista(task, optimizer)
    for p in task.model.parameters():
        p.grad = torch.zeros_like(p)
    return task, optimizer, hook


def test_rho_lets_the_share_asked_for_reach_zero_on_arrival_if_gradients_are_zero():
    task, optimizer, hook = with_zero_gradients()
    shares = []
    for _ in range(hook.steps):
        optimizer.step()
        shares.append(hook.reached())
    assert shares[int(0.6 * len(shares))] < 0.5
    assert shares[int(0.8 * len(shares)) :] == [0.5] * len(shares[int(0.8 * len(shares)) :])
    weighed = torch.cat([task.model[1].weight / 91, task.model[4].weight / 118])
    assert int((weighed == 0).sum()) == 7


def test_scales_that_stay_are_pulled_in_the_first_half_and_let_alone_in_the_second():
    task, optimizer, hook = with_zero_gradients()
    course = []
    for _ in range(hook.steps):
        course.append(torch.cat([task.model[1].weight, task.model[4].weight]).detach())
        optimizer.step()
    half, stays = hook.steps // 2, course[-1] != 0
    assert int(stays.sum()) == 7
    assert bool((course[half][stays] < course[half - 1][stays]).all())
    assert torch.equal(course[-1][stays], course[half][stays])


def test_alpha_changes_nothing_that_the_network_computes_and_is_undone():
    task, (x, _) = task_of(), images(count=8)
    net = task.model.eval()
    before, scale = net(x), net[1].weight.detach().clone()
    read = net[3].weight.detach().clone()
    assert bn_ista.rescale(net, task.graph, 0.01) == ["0", "3"]
    torch.testing.assert_close(net[1].weight.detach(), scale * 0.01)
    torch.testing.assert_close(net[3].weight.detach(), read * 100)
    torch.testing.assert_close(net(x), before, rtol=1e-4, atol=1e-5)
    bn_ista.rescale(net, task.graph, 100.0)
    torch.testing.assert_close(net[1].weight.detach(), scale)


def test_alpha_leaves_a_layer_alone_whose_activation_does_not_pass_a_factor_on():
    net = tiny_net()
    net[2] = torch.nn.SiLU()
    net.eval()
    graph, scale = graph_of(net), net[1].weight.detach().clone()
    assert bn_ista.rescale(net, graph, 0.01) == ["3"]
    assert torch.equal(net[1].weight.detach(), scale)


def test_a_channel_at_zero_is_absorbed_by_the_running_mean_of_the_next_norm():
    """−relu(β)·ΣW, as the original has it."""
    net = tiny_net().eval()
    with torch.no_grad():
        net[1].weight[2], net[1].bias[2] = 0.0, 0.7
    plan = dafp.PruningPlan({"0": (0, 1, 3, 4, 5)}, {"0": 6})
    small = dafp.prune(net, graph_of(net), plan, compensate=True)
    expected = net[4].running_mean - 0.7 * net[3].weight[:, 2].sum((1, 2))
    torch.testing.assert_close(small[4].running_mean, expected.detach())


def test_bn_ista_goes_on_after_a_restart_as_if_nothing_had_happened():
    same_after_a_restart(bn_ista.Ista)


# ---- steps that fp16 skips -----------------------------------------------------------------------


def trained_with_skips(name: str, skipped: int):
    """Two epochs, of which the loss scaler leaves out the first steps."""
    task = task_of(method=name, sparse=Schedule(2, 0.05, ()))
    method = methods.find(name)
    if method.prepare is not None:
        method.prepare(task)
    optimizer = SGD(task.model.parameters(), 0.05, momentum=0.9)
    hook = method.train(task, optimizer)
    each = task.data.steps("train", task.config.batch_size)
    for number in range(2 * each):
        if number >= skipped:
            step(task.model, optimizer, *images())
        if (number + 1) % each == 0:
            reached = hook.end_epoch()["sparsity"]
    return task, reached


@pytest.mark.parametrize("name", ["taylor", "ssr-l21", "ssr-l20", "bn-ista"])
def test_the_share_asked_for_is_reached_although_steps_are_skipped(name):
    assert trained_with_skips(name, 2)[1] == pytest.approx(0.5, abs=0.08)


@pytest.mark.parametrize("skipped", [0, 2])
def test_rows_that_go_are_zeroed_although_steps_are_skipped(skipped):
    task, _ = trained_with_skips("ssr-l20", skipped)
    dead = sum(int((task.model[at].weight.flatten(1) == 0).all(1).sum()) for at in (0, 3))
    assert dead == 7  # of 14


def test_alpha_is_undone_although_steps_are_skipped(monkeypatch):
    undone = []
    monkeypatch.setattr(bn_ista, "rescale", lambda model, graph, alpha: undone.append(alpha))
    trained_with_skips("bn-ista", 2)
    assert undone == [bn_ista.ALPHA, 1 / bn_ista.ALPHA]
