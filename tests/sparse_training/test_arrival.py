"""Sparse training over whole trainings: it arrives, it holds, it goes on, it does not wait."""

import copy
from functools import cache

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.optim import SGD

import dafp
from dafp.errors import TrainingError
from dafp.files.checkpoint import read_checkpoint, write_checkpoint
from dafp.selection import removed_share
from dafp.sparse_training.training import CONTROLS
from support.training import OPTIMIZERS, graph_of, images, step, tiny_net, train


def net_of_twenty():
    """8 + 12 filters: every target below is a whole number of them."""
    return tiny_net(widths=(8, 12))


@cache
def trained(kind: str, epochs: int, target: float):
    """(net, its sparse training, P after every epoch)."""
    net = net_of_twenty()
    optimizer = OPTIMIZERS[kind](net)
    sparse = dafp.SparseTraining(net, graph_of(net), optimizer, target=target, epochs=epochs)
    course = [record.sparsity for record in train(net, optimizer, sparse, epochs)]
    return net, sparse, course


COURSES = [(k, n, r) for k in OPTIMIZERS for n in (8, 12, 20) for r in (0.3, 0.5, 0.7)]


@pytest.mark.parametrize(("kind", "epochs", "target"), COURSES)
def test_it_arrives_holds_and_never_overshoots(kind, epochs, target):
    _, sparse, course = trained(kind, epochs, target)
    assert max(course) <= target + 0.02
    assert course[-2:] == pytest.approx([target, target], abs=0.02)
    assert sparse.sparsity() == course[-1]


@pytest.mark.parametrize(("kind", "epochs", "target"), COURSES)
def test_pruning_then_changes_next_to_nothing(kind, epochs, target):
    net, sparse, _ = trained(kind, epochs, target)
    small = dafp.prune(net.eval(), sparse.graph, sparse.plan())
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in net.parameters())
    x, _ = images(seed=1)
    with torch.no_grad():
        expected, found = net(x), small(x)
    assert (found - expected).abs().max() <= 1e-3 * expected.abs().max()


@pytest.mark.parametrize("unit", ["params", "macs"])
def test_the_target_can_be_a_share_of_parameters_or_multiply_adds(unit):
    net = tiny_net(widths=(12, 16))
    optimizer, graph = OPTIMIZERS["sgd"](net), graph_of(net)
    sparse = dafp.SparseTraining(net, graph, optimizer, target=0.5, epochs=12, unit=unit)
    record = train(net, optimizer, sparse, 12)[-1]
    # one filter of the second layer is 1/16 of the cost at most
    assert record.sparsity == pytest.approx(0.5, abs=1 / 16)
    assert record.sparsity == removed_share(graph, sparse.plan(), unit)
    assert record.filters == removed_share(graph, sparse.plan(), "filters")
    example = torch.zeros(1, 3, 8, 8)
    before = getattr(dafp.cost(net, example), unit)
    after = getattr(dafp.cost(dafp.prune(net.eval(), graph, sparse.plan()), example), unit)
    assert 1 - after / before == pytest.approx(record.sparsity, abs=0.05)


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("moment", [37, 64])
def test_a_training_restored_from_a_file_goes_on_bit_equal(kind, auto, moment, tmp_path):
    """Eight steps an epoch; the moments lie inside epochs and at an end."""
    options = {"target": 0.5, "epochs": 12, "step": "auto" if auto else 1e-3}
    x, y = images()
    parts = list(zip(x.chunk(8), y.chunk(8), strict=True))

    def begin():
        net = net_of_twenty()
        optimizer = OPTIMIZERS[kind](net)
        return net, optimizer, dafp.SparseTraining(net, graph_of(net), optimizer, **options)

    def go(net, optimizer, sparse, first, last):
        for i in range(first, last):
            step(net, optimizer, *parts[i % 8])
            if i % 8 == 7:
                sparse.end_epoch()

    whole = begin()
    go(*whole, 0, moment)
    net, optimizer, sparse = whole
    write_checkpoint(tmp_path / "state", {
        "net": net.state_dict(), "optimizer": optimizer.state_dict(), "sparse": sparse.state_dict(),
    })  # fmt: skip
    go(*whole, moment, 96)

    state = read_checkpoint(tmp_path / "state")
    again = begin()
    for thing, key in zip(again, ("net", "optimizer", "sparse"), strict=True):
        thing.load_state_dict(state[key])
    go(*again, moment, 96)
    assert again[2].records == whole[2].records
    for a, b in zip(again[0].state_dict().values(), net.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("options", [{}, {"step": 1e-3}], ids=["auto", "algorithm 1"])
def test_a_state_written_by_version_0_1_continues_bit_equally(options):
    def begin():
        net = net_of_twenty()
        optimizer = OPTIMIZERS["sgd"](net)
        sparse = dafp.SparseTraining(net, graph_of(net), optimizer, epochs=12, **options)
        return net, optimizer, sparse

    net, optimizer, sparse = begin()
    train(net, optimizer, sparse, 6)
    new = copy.deepcopy(sparse.state_dict())
    old = {"sparsity": 0.0, "epoch": 0, "effort": 1.0, **new}  # it had them for every step
    old["felt"] = old.pop("taylor_importance")
    old["records"] = [tuple(record.values()) for record in new["records"]]  # by position
    weights, momenta = copy.deepcopy((net.state_dict(), optimizer.state_dict()))
    train(net, optimizer, sparse, 6)

    again, its_optimizer, resumed = begin()
    again.load_state_dict(weights)
    its_optimizer.load_state_dict(momenta)
    resumed.load_state_dict(old)
    train(again, its_optimizer, resumed, 6)
    assert resumed.records == sparse.records
    for a, b in zip(again.state_dict().values(), net.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_state_is_not_changed_by_further_training():
    net = net_of_twenty()
    optimizer = OPTIMIZERS["sgd"](net)
    sparse = dafp.SparseTraining(net, graph_of(net), optimizer, epochs=12)
    train(net, optimizer, sparse, 3)
    state = sparse.state_dict()
    before = copy.deepcopy(state)
    train(net, optimizer, sparse, 3)
    assert str(state) == str(before)


def test_the_state_of_another_model_is_refused():
    net, other = net_of_twenty(), torch.nn.Sequential(net_of_twenty())
    optimizer = SGD(net.parameters(), 0.1)
    sparse = dafp.SparseTraining(net, graph_of(net), optimizer)
    foreign = dafp.SparseTraining(other, graph_of(other), SGD(other.parameters(), 0.1))
    with pytest.raises(TrainingError, match="another model"):
        sparse.load_state_dict(foreign.state_dict())


def test_the_state_of_a_model_of_other_width_is_refused():
    net, other = net_of_twenty(), tiny_net(widths=(4, 12))
    sparse = dafp.SparseTraining(net, graph_of(net), SGD(net.parameters(), 0.1))
    foreign = dafp.SparseTraining(other, graph_of(other), SGD(other.parameters(), 0.1))
    with pytest.raises(TrainingError, match="another model"):
        sparse.load_state_dict(foreign.state_dict())


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_a_compiled_forward_trains_the_original_the_same_way(kind):
    results = []
    for compiled in (False, True):
        net = tiny_net()
        optimizer = OPTIMIZERS[kind](net)
        sparse = dafp.SparseTraining(net, graph_of(net), optimizer, epochs=8)
        forward = torch.compile(net, backend="eager") if compiled else net
        results.append([r.sparsity for r in train(forward, optimizer, sparse, 8)])
    assert results[0] == results[1]
    assert results[0][-1] == pytest.approx(0.5, abs=0.02)


def test_a_compiled_model_itself_is_refused():
    net = tiny_net()
    wrapped = torch.compile(net, backend="eager")
    with pytest.raises(dafp.DafpError):
        dafp.SparseTraining(wrapped, graph_of(net), SGD(net.parameters(), 0.1))


@pytest.mark.parametrize("auto", [True, False])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_steps_between_looks_never_wait_for_the_device(kind, auto, monkeypatch):
    net = net_of_twenty()
    optimizer = OPTIMIZERS[kind](net)
    sparse = dafp.SparseTraining(
        net, graph_of(net), optimizer, epochs=8, step="auto" if auto else 1e-3
    )
    x, y = images()
    parts = list(zip(x.chunk(16), y.chunk(16), strict=True))
    looks, waits = [], []
    for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__"):
        real = getattr(torch.Tensor, name)

        def seen(self, *args, real=real, name=name, **kwargs):
            waits.append(name)
            return real(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, seen)
    for _ in range(3):
        for part in parts:
            optimizer.zero_grad()
            cross_entropy(net(part[0]), part[1]).backward()
            # the optimizer itself looks at counters of its own, on the CPU
            waits.clear()
            for hook in optimizer._optimizer_step_pre_hooks.values():
                hook(optimizer, (optimizer,), {})
            for hook in optimizer._optimizer_step_post_hooks.values():
                hook(optimizer, (optimizer,), {})
            looks.append(bool(waits))
        sparse.end_epoch()
    assert sparse.penalty > 0
    assert sum(looks) == (2 * (CONTROLS - 1) if auto else 0)


@pytest.mark.parametrize("target", [0.5, 0.9])
def test_a_warm_up_before_the_first_look_kills_no_channel_in_one_step(target):
    """λ is set while the rate is a thousandth; the scheduler raises it after `end_epoch`."""
    net = net_of_twenty()
    optimizer = SGD(net.parameters(), lr=1e-4, momentum=0.9)
    sparse = dafp.SparseTraining(net, graph_of(net), optimizer, target=target, epochs=10)
    train(net, optimizer, sparse, 1)
    assert sparse.penalty > 0
    optimizer.param_groups[0]["lr"] = 0.1
    step(net.train(), optimizer, *images())
    assert sparse.sparsity() == 0.0  # 0.2 and 0.4 when λ instead of the distance was kept
    course = [record.sparsity for record in train(net, optimizer, sparse, 9)]
    assert course[-1] == pytest.approx(target, abs=0.02)


def test_a_plan_of_a_training_that_was_stopped_early_meets_the_target_and_says_so(caplog):
    net = net_of_twenty()
    optimizer, graph = OPTIMIZERS["sgd"](net), graph_of(net)
    sparse = dafp.SparseTraining(net, graph, optimizer, target=0.5, epochs=40)
    train(net, optimizer, sparse, 2)
    assert sparse.sparsity() < 0.2
    plan = sparse.plan()
    assert removed_share(graph, plan, "filters") == pytest.approx(0.5, abs=0.02)
    assert "of the 0.500 asked for after 2 of 40 epochs" in caplog.text


def test_few_epochs_are_said_once_in_the_first_step(caplog):
    for epochs, times in ((7, 1), (8, 0)):
        net = net_of_twenty()
        optimizer = OPTIMIZERS["sgd"](net)
        dafp.SparseTraining(net, graph_of(net), optimizer, epochs=epochs)
        assert caplog.text == ""  # dafp run makes one before the baseline, to see whether it can
        for _ in range(2):
            step(net.train(), optimizer, *images())
        assert caplog.text.count(f"epochs={epochs} is few for sparse training") == times
        caplog.clear()
