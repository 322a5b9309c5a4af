"""The penalty in anybody's loop: what one optimizer step does to the scales, by hand."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim import SGD, AdamW, Optimizer

import dafp
from dafp.errors import DafpError, TrainingError
from support.training import graph_of, images, step, tiny_net, train

STEP = 0.01  # Δ: after one epoch that kills nothing, λ


def started(net: nn.Module, optimizer: Optimizer, **options) -> dafp.SparseTraining:
    """Sparse training by Algorithm 1 after its first epoch, in which nothing died: λ = Δ."""
    sparse = dafp.SparseTraining(
        net, graph_of(net), optimizer, epochs=10, **{"step": STEP, **options}
    )
    step(net, optimizer, *images())
    sparse.end_epoch()
    assert sparse.penalty == STEP
    return sparse


def scales(net: nn.Sequential) -> list[nn.Parameter]:
    return [net[1].weight, net[4].weight]


def gradients(net: nn.Module, x: Tensor, y: Tensor) -> None:
    net.zero_grad()
    cross_entropy(net(x), y).backward()


def test_one_step_of_sgd_moves_a_scale_by_its_gradient_and_the_penalty():
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.1)
    started(net, optimizer)
    with torch.no_grad():
        net[1].weight[0] = -0.7  # a negative one is pulled upwards
    gradients(net, *images())
    expected = [s - 0.1 * (s.grad + STEP * s.sign()) for s in scales(net)]
    optimizer.step()
    torch.testing.assert_close(scales(net), expected, rtol=0, atol=1e-7)


def test_the_penalty_builds_up_in_the_momentum_of_sgd():
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.1, momentum=0.9)
    started(net, optimizer)
    buffer = optimizer.state[net[1].weight]["momentum_buffer"].clone()
    scale = net[1].weight.detach().clone()
    for _ in range(2):
        gradients(net, *images())
        # v ← 0.9·v + g + λ·sign(γ);  γ ← γ − lr·v
        buffer = 0.9 * buffer + net[1].weight.grad + STEP * scale.sign()
        scale = scale - 0.1 * buffer
        optimizer.step()
    torch.testing.assert_close(net[1].weight.detach(), scale, rtol=0, atol=1e-6)


def test_nothing_but_the_scales_of_prunable_channels_is_penalised():
    x, y = images()
    net = tiny_net()
    kept = copy.deepcopy(net)
    optimizer = SGD(net.parameters(), 0.1)
    graph = graph_of(net, keep=("3",))
    assert [g.name for g in graph.groups] == ["0"]
    sparse = dafp.SparseTraining(net, graph, optimizer, target=0.3, epochs=10, step=STEP)
    plain = SGD(kept.parameters(), 0.1)
    step(net, optimizer, x, y)
    step(kept, plain, x, y)
    sparse.end_epoch()
    step(net, optimizer, x, y)
    step(kept, plain, x, y)
    for (name, a), b in zip(net.named_parameters(), kept.parameters(), strict=True):
        assert torch.equal(a, b) == (name != "1.weight"), name


def test_the_penalty_comes_once_per_step_under_gradient_accumulation():
    x, y = images()
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.1)
    started(net, optimizer)
    before = net[1].weight.detach().clone()
    optimizer.zero_grad()
    for part in range(4):
        (cross_entropy(net(x[part::4]), y[part::4]) / 4).backward()
    expected = before - 0.1 * (net[1].weight.grad + STEP * before.sign())
    optimizer.step()
    torch.testing.assert_close(net[1].weight.detach(), expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("unscaled_first", [False, True])
def test_a_grad_scaler_does_not_scale_the_penalty(fused, unscaled_first):
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.1, fused=fused)
    started(net, optimizer)
    gradients(net, *images())
    expected = [s - 0.1 * (s.grad + STEP * s.sign()) for s in scales(net)]
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    net.train()
    scaler.scale(cross_entropy(net(images()[0]), images()[1])).backward()
    if unscaled_first:
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    torch.testing.assert_close(scales(net), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("kind", [SGD, AdamW])
@pytest.mark.parametrize("auto", [False, True])
def test_a_step_skipped_for_infinite_gradients_changes_no_scale_and_no_shift(fused, kind, auto):
    net = tiny_net()
    optimizer = kind(net.parameters(), 0.01, fused=fused)
    if auto:  # far enough that scales are pulled and shifts fade
        sparse = dafp.SparseTraining(net, graph_of(net), optimizer, epochs=8)
        train(net, optimizer, sparse, 7)
        assert sparse.penalty > 0
    else:
        started(net, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer.zero_grad()
    scaler.scale(net(images()[0]).sum() * torch.inf).backward()
    before = [p.detach().clone() for p in net.parameters()]
    scaler.step(optimizer)
    scaler.update()
    assert scaler.get_scale() == 512.0
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), before, strict=True))


def test_the_penalty_is_decoupled_from_adamw():
    x, y = images()
    net = tiny_net()
    optimizer = AdamW(net.parameters(), 0.02, weight_decay=0.1)
    started(net, optimizer)
    with torch.no_grad():
        net[1].weight[:3] = torch.tensor([1e-6, -1.0, 0.5])
    plain = copy.deepcopy(net)
    alone = AdamW(plain.parameters(), 0.02, weight_decay=0.1)
    alone.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(net, optimizer, x, y)
    step(plain, alone, x, y)
    for scale, free in zip(scales(net), scales(plain), strict=True):
        # γ ← sign(γ)·max(|γ| − lr·λ, 0)
        expected = free.sign() * (free.abs() - 0.02 * STEP).clamp(min=0)
        torch.testing.assert_close(scale, expected, rtol=0, atol=1e-7)
    assert torch.equal(net[0].weight, plain[0].weight)
    assert torch.equal(net[1].bias, plain[1].bias)


def test_adamw_stops_a_scale_at_zero():
    net = tiny_net()
    optimizer = AdamW(net.parameters(), 0.0, weight_decay=0.0)
    started(net, optimizer)
    with torch.no_grad():
        net[1].weight[:2] = torch.tensor([1e-5, -1e-5])
    optimizer.param_groups[0]["lr"] = 1e-2  # lr·λ = 1e-4; frozen gradients move nothing else
    optimizer.zero_grad(set_to_none=False)
    for state in optimizer.state.values():
        state["exp_avg"].zero_()
    optimizer.step()
    assert net[1].weight[:2].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("kind", [SGD, AdamW])
@pytest.mark.parametrize("by_name", [False, True])
def test_a_step_with_a_closure_is_the_same_step(kind, by_name):
    x, y = images()
    results = []
    for closed in (False, True):
        net = tiny_net()
        optimizer = kind(net.parameters(), 0.05)
        started(net, optimizer)

        def closure(net=net, optimizer=optimizer):
            optimizer.zero_grad()
            loss = cross_entropy(net(x), y)
            loss.backward()
            return loss

        if closed:
            loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
            assert torch.isfinite(loss)
        else:
            closure()
            optimizer.step()
        results.append(scales(net))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_every_parameter_group_has_its_own_learning_rate():
    net = tiny_net()
    first = [net[1].weight]
    rest = [p for p in net.parameters() if p is not first[0]]
    optimizer = AdamW([{"params": first, "lr": 0.1}, {"params": rest, "lr": 0.001}])
    started(net, optimizer)
    plain = copy.deepcopy(net)
    first = [plain[1].weight]
    rest = [p for p in plain.parameters() if p is not first[0]]
    alone = AdamW([{"params": first, "lr": 0.1}, {"params": rest, "lr": 0.001}])
    alone.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(net, optimizer, *images())
    step(plain, alone, *images())
    for place, lr in ((1, 0.1), (4, 0.001)):
        moved = plain[place].weight - net[place].weight
        torch.testing.assert_close(moved, torch.full_like(moved, lr * STEP), rtol=0, atol=2e-7)


def test_scales_with_a_smaller_learning_rate_are_steered_as_far_as_the_others():
    """Layer-wise rates: what is chosen reaches zero in both layers, at the same pace."""
    net = tiny_net()
    slow, fast = [*net[0].parameters(), *net[1].parameters()], [*net[3:].parameters()]
    optimizer = SGD([{"params": slow, "lr": 1e-4}, {"params": fast, "lr": 0.05}])
    sparse = dafp.SparseTraining(net, graph_of(net), optimizer, target=0.5, epochs=10)
    distances = []
    for _ in range(4):
        train(net, optimizer, sparse, epochs=1)
        moved = [scale.penalty.max() * group["lr"] for scale, group in zip(
            sparse._scales.scales, optimizer.param_groups, strict=True)]  # fmt: skip
        distances.append(torch.stack(moved))
    both = torch.stack([each for each in distances if bool((each > 0).all())])
    assert len(both) > 0
    torch.testing.assert_close(both[:, 0], both[:, 1])


def test_a_layer_without_a_learning_rate_neither_moves_nor_drives_the_penalty_up():
    net = tiny_net()
    still, free = [*net[0].parameters(), *net[1].parameters()], [*net[3:].parameters()]
    optimizer = SGD([{"params": still, "lr": 0.0}, {"params": free, "lr": 0.05}])
    before = net[1].weight.detach().clone()
    sparse = dafp.SparseTraining(net, graph_of(net), optimizer, target=0.7, epochs=40)
    train(net, optimizer, sparse, epochs=40)
    assert torch.equal(net[1].weight.detach(), before)
    assert sparse.penalty * 0.05 <= float(net[4].weight.detach().abs().max())
    assert all(bool(p.isfinite().all()) for p in net.parameters())


def test_the_best_channel_of_a_layer_lives_however_much_is_asked_for():
    net = tiny_net()  # 6 + 8 filters: of 12 / 14 a single one stays in each layer
    optimizer = SGD(net.parameters(), 0.05)
    sparse = dafp.SparseTraining(net, graph_of(net), optimizer, target=12 / 14, epochs=20)
    train(net, optimizer, sparse, epochs=20)
    assert [int((scale.detach() != 0).sum()) for scale in scales(net)] == [1, 1]
    assert sparse.records[-1].sparsity == pytest.approx(12 / 14)


def test_detach_leaves_the_optimizer_as_it_was():
    x, y = images()
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.1)
    sparse = started(net, optimizer)
    sparse.detach()
    plain = copy.deepcopy(net)
    alone = SGD(plain.parameters(), 0.1)
    step(net, optimizer, x, y)
    step(plain, alone, x, y)
    assert all(torch.equal(a, b) for a, b in zip(net.parameters(), plain.parameters(), strict=True))
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks


# ---- what is refused -----------------------------------------------------------------------------


def test_an_optimizer_of_another_model_is_refused():
    net, other = tiny_net(), tiny_net()
    with pytest.raises(TrainingError, match=r"does not train '1.weight' and 1 other scale"):
        dafp.SparseTraining(net, graph_of(net), SGD(other.parameters(), 0.1))


def test_a_graph_of_another_model_is_refused():
    net = tiny_net()
    graph = graph_of(tiny_net(widths=(4, 4)))
    with pytest.raises(DafpError):
        dafp.SparseTraining(net, graph, SGD(net.parameters(), 0.1))


def test_a_frozen_scale_is_refused_by_name():
    net = tiny_net()
    net[4].weight.requires_grad_(False)
    with pytest.raises(TrainingError, match=r"'4.weight' is frozen"):
        dafp.SparseTraining(net, graph_of(net), SGD(net.parameters(), 0.1))


def test_a_network_without_batch_norm_is_refused_with_the_reason():
    net = nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(64, 4)
    )
    with pytest.raises(TrainingError, match=r"no prunable channel passes a BN.*affine=True"):
        dafp.SparseTraining(net, graph_of(net), SGD(net.parameters(), 0.1))


def test_a_network_in_which_nothing_can_be_pruned_is_refused_with_the_reason():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    with pytest.raises(TrainingError, match=r"no channel can be pruned \('0': .*output"):
        dafp.SparseTraining(net, graph_of(net), SGD(net.parameters(), 0.1))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"target": 0.0}, "target=0.0"), ({"epochs": 0}, "epochs=0"), ({"p": 0.0}, "p=0.0"),
        ({"p": 1.0}, "p=1.0"), ({"unit": "bytes"}, "unit='bytes'"), ({"step": -1}, "step=-1"),
        ({"criterion": "luck"}, "criterion='luck'"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_refused_and_leave_no_hook(options, reason):
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.1)
    with pytest.raises(DafpError, match=reason):
        dafp.SparseTraining(net, graph_of(net), optimizer, **options)
    assert not optimizer._optimizer_step_pre_hooks


def test_a_target_that_would_empty_a_layer_is_refused():
    # 6 + 8 filters, one of each layer stays: 12 / 14 = 0.857 can go
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.1)
    with pytest.raises(TrainingError, match=r"target=0.9 .*out of reach: .* only 0.857"):
        dafp.SparseTraining(net, graph_of(net), optimizer, target=0.9)
    assert not optimizer._optimizer_step_pre_hooks
    dafp.SparseTraining(net, graph_of(net), optimizer, target=0.85)


@pytest.mark.parametrize("unit", ["params", "macs"])
def test_a_target_of_another_unit_that_is_out_of_reach_is_refused_at_once(unit):
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.1)
    with pytest.raises(
        TrainingError, match=rf"target=0.99 of {unit} is out of reach: .* only 0\.\d+"
    ):
        dafp.SparseTraining(net, graph_of(net), optimizer, target=0.99, unit=unit)


def test_the_end_of_an_epoch_without_a_step_is_refused():
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.1)
    sparse = dafp.SparseTraining(net, graph_of(net), optimizer)
    with pytest.raises(TrainingError, match="made no step"):
        sparse.end_epoch()
    step(net, optimizer, *images())
    sparse.end_epoch()
    with pytest.raises(TrainingError, match="made no step"):
        sparse.end_epoch()


# ---- printed -------------------------------------------------------------------------------------


def test_a_training_prints_its_target_and_how_far_it_is():
    net = tiny_net()
    optimizer = SGD(net.parameters(), 0.05)
    sparse = dafp.SparseTraining(net, graph_of(net), optimizer, target=0.4, epochs=2)
    assert repr(sparse) == "SparseTraining towards 0.4 of filters, after 0 of 2 epochs"
    records = train(net, optimizer, sparse, 2)
    assert repr(sparse).endswith(f"after 2 of 2 epochs: P = {records[-1].sparsity:.3f}")
    table = sparse._repr_html_()
    assert "<th>P</th><th>aim</th><th>λ</th>" in table
    assert table.count("<td>") == 2 * 4
    assert f"<td>2</td><td>{records[-1].sparsity:.3f}</td>" in table
