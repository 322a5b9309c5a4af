"""Taylor pruning by hand: what a gate's score is, when gates close, and that they stay closed."""

import dataclasses

import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD

from dafp.methods import Task, taylor
from dafp.training.config import Config, Schedule
from support.training import graph_of, images, step, tiny_data, tiny_net

CONFIG = Config(method="taylor", sparse=Schedule(4, 0.05, ()), batch_size=16)


def task_of(**settings):
    net = tiny_net()
    return Task(net, graph_of(net), dataclasses.replace(CONFIG, **settings), tiny_data())


def closed(task) -> dict[str, list[int]]:
    keep = taylor.plan(task).keep
    return {g.name: [c for c in range(g.size) if c not in keep[g.name]] for g in task.graph.groups}


def test_the_gradients_of_scale_and_shift_give_what_a_real_gate_would():
    task, (x, y) = task_of(), images()
    net = task.model
    gate = torch.ones(6, requires_grad=True)
    out = net[2:](net[1](net[0](x)) * gate.view(1, -1, 1, 1))
    cross_entropy(out, y).backward()
    changes = taylor.gate_changes(net, task.graph, taylor.gates(task.graph))
    torch.testing.assert_close(changes["0"], gate.grad, rtol=1e-4, atol=1e-7)


def test_the_gate_of_a_channel_without_norm_is_its_filter_and_bias():
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 2, 3),
        torch.nn.Flatten(),
    )  # fmt: skip
    graph, x = graph_of(net), torch.randn(2, 3, 8, 8)
    gate = torch.ones(4, requires_grad=True)
    (net[1:](net[0](x) * gate.view(1, -1, 1, 1)) ** 2).mean().backward()
    changes = taylor.gate_changes(net, graph, taylor.gates(graph))
    torch.testing.assert_close(changes["0"], gate.grad, rtol=1e-4, atol=1e-7)


def test_every_step_adds_the_square_of_what_its_gates_change():
    task = task_of(sparse=Schedule(8, 0.05, ()))
    optimizer = SGD(task.model.parameters(), 0.1)
    hook = taylor.Taylor(task, optimizer)
    assert hook.period == 3  # 32 steps, ten prunings: the sums of two steps are still there
    expected = {"0": torch.zeros(6), "3": torch.zeros(8)}
    for number in range(2):
        norms = {"0": task.model[1], "3": task.model[4]}
        before = {
            n: (norm.weight.detach().clone(), norm.bias.detach().clone())
            for n, norm in norms.items()
        }
        step(task.model, optimizer, *images(number))
        for name, norm in norms.items():
            gamma, beta = before[name]
            expected[name] += (gamma * norm.weight.grad + beta * norm.bias.grad) ** 2
    assert float(expected["0"].max()) > 0
    for name, sums in expected.items():
        torch.testing.assert_close(hook.sums[name], sums, rtol=1e-4, atol=0)


def test_scores_are_means_of_squares_smoothed_by_nine_tenths():
    task = task_of()
    hook = taylor.Taylor(task, SGD(task.model.parameters(), 0.1))
    hook.period = 2
    first, second = torch.tensor([1.0, 2, 3, 4, 5, 6]), torch.tensor([6.0, 5, 4, 3, 2, 1])
    other = torch.arange(1.0, 9)
    hook.sums = {"0": 2 * first, "3": other.clone()}
    hook._prune(1)
    torch.testing.assert_close(hook.scores["0"], first)
    assert bool((hook.sums["0"] == 0).all())
    hook.sums = {"0": 2 * second, "3": other.clone()}
    hook._prune(2)
    torch.testing.assert_close(hook.scores["0"], 0.9 * first + 0.1 * second)


def test_gates_close_globally_lowest_first():
    task = task_of(target=3 / 14)
    hook = taylor.Taylor(task, SGD(task.model.parameters(), 0.1))
    hook.sums = {
        "0": torch.tensor([9.0, 1, 8, 3, 7, 6]), "3": torch.tensor([9.0, 8, 7, 2, 9, 8, 7, 6]),
    }  # fmt: skip
    hook._prune(hook.prunings)
    gone = {name: flags.nonzero().flatten().tolist() for name, flags in hook.gone.items()}
    assert gone == {"0": [1, 3], "3": [3]}


def test_a_long_training_keeps_the_originals_pace_and_a_short_one_makes_haste():
    assert taylor.timetable(steps=30_000, gates=2_000) == (30, 20)  # 100 gates every 30 batches
    assert taylor.timetable(steps=30_000, gates=50) == (30, 10)  # 5 gates each
    assert taylor.timetable(steps=600, gates=4_000) == (30, 20)  # 200 each, or it would be late
    assert taylor.timetable(steps=16, gates=10) == (1, 10)
    assert taylor.timetable(steps=4, gates=10) == (1, 4)


def test_a_closed_gate_stays_closed_whatever_momentum_says():
    task = task_of()
    optimizer = SGD(task.model.parameters(), 0.1, momentum=0.9, weight_decay=1e-4)
    hook = taylor.Taylor(task, optimizer)
    assert (hook.period, hook.prunings) == (1, 10)
    before: set[tuple[str, int]] = set()
    counts = []
    for _ in range(16):
        step(task.model, optimizer, *images())
        now = {(name, c) for name, gone in closed(task).items() for c in gone}
        assert before <= now
        before = now
        counts.append(len(now))
    assert counts[9:] == [7] * 7  # half of 14
    assert counts[:10] == sorted(counts[:10])
    assert 2 <= counts[3] <= 4
    assert hook.end_epoch() == {"sparsity": 0.5, "target": 0.5}


def test_taylor_goes_on_after_a_restart_as_if_nothing_had_happened():
    def steps(count, state=None):
        task = task_of()
        optimizer = SGD(task.model.parameters(), 0.05, momentum=0.9)
        hook = taylor.Taylor(task, optimizer)
        if state is not None:
            task.model.load_state_dict(state[0])
            optimizer.load_state_dict(state[1])
            hook.load_state_dict(state[2])
        for _ in range(count):
            step(task.model, optimizer, *images())
        return task.model.state_dict(), optimizer.state_dict(), hook.state_dict()

    whole, parts = steps(12), steps(7, steps(5))
    for name, value in whole[0].items():
        torch.testing.assert_close(parts[0][name], value, rtol=0, atol=0)
