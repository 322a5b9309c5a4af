"""An optimizer for the small model: its state is cut exactly as the weights are."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

import dafp
from dafp import ChannelGraph, PruningPlan
from dafp.errors import PlanError

X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))
Y = torch.tensor([0, 1, 2, 3])
FIRST, SECOND = [1, 2, 5, 7], [0, 3, 4, 8, 10, 11]
PLAN = PruningPlan({"0": tuple(FIRST), "3": tuple(SECOND)})

# parameter -> (rows, columns) that stay, worked out by hand for `net` and PLAN
CUTS: dict[str, tuple[list[int] | None, list[int] | None]] = {
    "0.weight": (FIRST, None), "0.bias": (FIRST, None), "1.weight": (FIRST, None),
    "1.bias": (FIRST, None), "3.weight": (SECOND, FIRST), "3.bias": (SECOND, None),
    "4.weight": (SECOND, None), "4.bias": (SECOND, None), "8.weight": (None, SECOND),
    "8.bias": (None, None),
}  # fmt: skip


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip


def cut(name: str, tensor: Tensor) -> Tensor:
    rows, columns = CUTS[name]
    tensor = tensor if rows is None else tensor[rows]
    return tensor if columns is None else tensor[:, columns]


def two_groups(model: nn.Module) -> list[dict[str, Any]]:
    """BN and biases without weight decay and with a rate of their own."""
    vectors = [p for p in model.parameters() if p.dim() == 1]
    weights = [p for p in model.parameters() if p.dim() > 1]
    return [
        {"params": weights, "lr": 0.05, "weight_decay": 1e-3},
        {"params": vectors, "lr": 0.2, "weight_decay": 0.0},
    ]


Make = Callable[[nn.Module], Optimizer]
OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda m: SGD(m.parameters(), lr=0.1),
    "sgd momentum": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-3),
    "sgd nesterov": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "sgd fused": lambda m: SGD(m.parameters(), lr=0.1, momentum=0.9, fused=True),
    "adam": lambda m: Adam(m.parameters(), lr=0.01),
    "adam amsgrad": lambda m: Adam(m.parameters(), lr=0.01, amsgrad=True),
    "adam fused": lambda m: Adam(m.parameters(), lr=0.01, fused=True),
    "adamw": lambda m: AdamW(m.parameters(), lr=0.01, weight_decay=0.1),
    "adamw fused": lambda m: AdamW(m.parameters(), lr=0.01, fused=True, amsgrad=True),
    "rmsprop": lambda m: torch.optim.RMSprop(m.parameters(), lr=0.01, momentum=0.5),
    "two groups, sgd": lambda m: SGD(two_groups(m), lr=0.1, momentum=0.9),
    "two groups, adamw": lambda m: AdamW(two_groups(m), lr=0.1, betas=(0.8, 0.9)),
}
EACH = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def step(model: nn.Module, optimizer: Optimizer) -> None:
    optimizer.zero_grad()
    nn.functional.cross_entropy(model.train()(X), Y).backward()
    optimizer.step()


def trained(make: Make) -> tuple[nn.Module, Optimizer, ChannelGraph]:
    model = net()
    optimizer = make(model)
    for _ in range(3):
        step(model, optimizer)
    return model, optimizer, dafp.trace(model, X)


def same(a: Any, b: Any) -> bool:
    return torch.equal(a, b) if isinstance(a, Tensor) else bool(a == b)


# ---- what is carried over ------------------------------------------------------------------------


@EACH
def test_the_state_is_the_originals_state_cut_like_the_weights(make):
    model, optimizer, graph = trained(make)
    small = dafp.prune(model, graph, PLAN)
    carried = dafp.carry_over(optimizer, model, small)
    assert type(carried) is type(optimizer)
    ours = dict(small.named_parameters())
    for name, parameter in model.named_parameters():
        old, new = optimizer.state[parameter], carried.state[ours[name]]
        assert list(old) == list(new)
        for key, value in old.items():
            shaped = isinstance(value, Tensor) and value.shape == parameter.shape
            assert same(new[key], cut(name, value) if shaped else value)


@EACH
def test_the_next_step_moves_kept_weights_as_the_original_optimizer_would(make):
    model, optimizer, graph = trained(make)
    small = dafp.prune(model, graph, PLAN)
    carried = dafp.carry_over(optimizer, model, small)
    ours = dict(small.named_parameters())
    generator = torch.Generator().manual_seed(1)
    for name, parameter in model.named_parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)
        ours[name].grad = cut(name, parameter.grad).clone()
    optimizer.step()
    carried.step()
    for name, parameter in model.named_parameters():
        # elementwise, but vector and scalar code may round the last digit differently
        torch.testing.assert_close(ours[name], cut(name, parameter), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", ["sgd momentum", "adam", "two groups, adamw"])
def test_a_training_step_moves_kept_weights_as_that_of_the_masked_model(name):
    model, optimizer, graph = trained(OPTIMIZERS[name])
    small, masked = dafp.prune(model, graph, PLAN), dafp.mask(model, graph, PLAN)
    carried = dafp.carry_over(optimizer, model, small)
    beside = OPTIMIZERS[name](masked)
    beside.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    step(small, carried)
    step(masked, beside)
    ours = dict(small.named_parameters())
    for key in ("0.weight", "1.weight", "3.weight", "4.bias", "8.weight", "8.bias"):
        theirs = cut(key, masked.get_parameter(key))
        torch.testing.assert_close(ours[key], theirs, rtol=1e-3, atol=1e-4)


@EACH
def test_parameter_groups_keep_their_order_and_options(make):
    model, optimizer, graph = trained(make)
    optimizer.param_groups[0]["initial_lr"] = 0.7  # as schedulers leave it
    small = dafp.prune(model, graph, PLAN)
    carried = dafp.carry_over(optimizer, model, small)
    names = {id(p): n for n, p in [*model.named_parameters(), *small.named_parameters()]}
    for old, new in zip(optimizer.param_groups, carried.param_groups, strict=True):
        assert [names[id(p)] for p in new["params"]] == [names[id(p)] for p in old["params"]]
        assert {k: v for k, v in new.items() if k != "params"} == {
            k: v for k, v in old.items() if k != "params"
        }


@EACH
def test_the_old_optimizer_is_not_touched(make):
    model, optimizer, graph = trained(make)
    before = copy.deepcopy(optimizer.state_dict())
    small = dafp.prune(model, graph, PLAN)
    carried = dafp.carry_over(optimizer, model, small)
    step(small, carried)
    after = optimizer.state_dict()
    assert after["param_groups"] == before["param_groups"]
    for number, state in before["state"].items():
        assert all(same(after["state"][number][key], value) for key, value in state.items())
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    assert owned == {id(p) for p in model.parameters()}


def test_a_rate_held_in_a_tensor_is_not_shared():
    model, optimizer, graph = trained(
        lambda m: Adam(m.parameters(), lr=torch.tensor(0.01), foreach=False)
    )
    carried = dafp.carry_over(optimizer, model, dafp.prune(model, graph, PLAN))
    carried.param_groups[0]["lr"].fill_(5)
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.01)


def test_an_optimizer_that_has_not_stepped_yet_is_carried_over_without_state():
    model = net()
    optimizer = Adam(model.parameters(), lr=0.01)
    small = dafp.prune(model, dafp.trace(model, X), PLAN)
    carried = dafp.carry_over(optimizer, model, small)
    assert len(carried.state) == 0
    step(small, carried)


def test_an_optimizer_of_a_part_of_the_model_is_carried_over():
    model = net()
    optimizer = SGD(model[8].parameters(), lr=0.1, momentum=0.9)
    step(model, optimizer)
    small = dafp.prune(model, dafp.trace(model, X), PLAN)
    carried = dafp.carry_over(optimizer, model, small)
    (group,) = carried.param_groups
    assert [p.shape for p in group["params"]] == [(5, 6), (5,)]


def test_a_scheduler_goes_on_with_the_carried_optimizer():
    model, optimizer, graph = trained(OPTIMIZERS["two groups, sgd"])
    small = dafp.prune(model, graph, PLAN)
    carried = dafp.carry_over(optimizer, model, small)
    scheduler = torch.optim.lr_scheduler.StepLR(carried, step_size=1, gamma=0.5)
    step(small, carried)
    scheduler.step()
    assert [group["lr"] for group in carried.param_groups] == pytest.approx([0.025, 0.1])


def test_a_users_own_optimizer_class_is_carried_over():
    class Mine(SGD):
        def __init__(self, params: Any, **options: Any) -> None:
            super().__init__(params, **options)

    model, optimizer, graph = trained(lambda m: Mine(m.parameters(), lr=0.3, momentum=0.9))
    carried = dafp.carry_over(optimizer, model, dafp.prune(model, graph, PLAN))
    assert type(carried) is Mine
    assert carried.param_groups[0]["lr"] == 0.3


def test_selections_and_narrowed_norms_are_cut_alike():
    torch.manual_seed(0)
    model = dafp.models.build("preresnet11", width=0.25)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9)
    x = torch.randn(2, 3, 16, 16)
    model(x).sum().backward()
    optimizer.step()
    graph = dafp.trace(model, x)
    plan = PruningPlan({"stages.1.0.bn1": (1, 5), "bn": (0, 7, 9)})
    small = dafp.prune(model, graph, plan)
    carried = dafp.carry_over(optimizer, model, small)

    def momentum(state: Any, network: nn.Module, name: str) -> Tensor:
        return state[network.get_parameter(name)]["momentum_buffer"]

    for name, rows, columns in (
        ("stages.1.0.conv1.weight", None, [1, 5]),
        ("bn.weight", [0, 7, 9], None),
        ("fc.weight", None, [0, 7, 9]),
    ):
        old = momentum(optimizer.state, model, name)
        old = old if rows is None else old[rows]
        old = old if columns is None else old[:, columns]
        assert torch.equal(momentum(carried.state, small, name), old)


# ---- what is refused -----------------------------------------------------------------------------


def test_an_optimizer_of_another_copy_is_refused():
    model, _, graph = trained(OPTIMIZERS["adam"])
    stranger = Adam(copy.deepcopy(model).parameters())
    small = dafp.prune(model, graph, PLAN)
    with pytest.raises(PlanError, match=r"10 parameters that are not the model's"):
        dafp.carry_over(stranger, model, small)


def test_a_model_that_was_not_pruned_is_refused():
    model, optimizer, _ = trained(OPTIMIZERS["adam"])
    with pytest.raises(PlanError, match=r"not pruned by dafp\.prune"):
        dafp.carry_over(optimizer, model, net())


def test_a_small_model_that_came_from_another_is_refused():
    model, optimizer, _ = trained(OPTIMIZERS["adam"])
    other = dafp.slim(dafp.models.build("resnet8", width=0.25), torch.randn(1, 3, 16, 16))
    with pytest.raises(PlanError):
        dafp.carry_over(optimizer, model, other)


def test_a_model_that_was_pruned_twice_is_refused_with_the_first_optimizer():
    model, optimizer, graph = trained(OPTIMIZERS["sgd momentum"])
    once = dafp.prune(model, graph, PLAN)
    twice = dafp.slim(once, X, ratio=0.3)
    with pytest.raises(PlanError):
        dafp.carry_over(optimizer, model, twice)


def test_pruning_twice_carries_over_twice():
    model, optimizer, graph = trained(OPTIMIZERS["sgd momentum"])
    once = dafp.prune(model, graph, PLAN)
    first = dafp.carry_over(optimizer, model, once)
    twice = dafp.slim(once, X, ratio=0.3)
    second = dafp.carry_over(first, once, twice)
    step(twice, second)


def test_a_model_that_was_loaded_and_lost_its_positions_is_refused(tmp_path):
    model, optimizer, graph = trained(OPTIMIZERS["sgd momentum"])
    dafp.save(dafp.prune(model, graph, PLAN), tmp_path / "small.safetensors")
    loaded = dafp.load(tmp_path / "small.safetensors", net())
    with pytest.raises(PlanError):
        dafp.carry_over(optimizer, model, loaded)


@pytest.mark.parametrize("kind", [torch.optim.LBFGS, torch.optim.Adafactor],
                         ids=lambda kind: kind.__name__)  # fmt: skip
def test_state_that_cannot_be_cut_is_refused(kind):
    model = net()
    optimizer = kind(model.parameters(), lr=0.01)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(X), Y)
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    small = dafp.prune(model, dafp.trace(model, X), PLAN)
    with pytest.raises(PlanError, match=kind.__name__):
        dafp.carry_over(optimizer, model, small)


class NeedsMore(SGD):
    """Wants to know something that is not kept in `defaults`."""

    def __init__(self, params: Any, total_steps: int, lr: float) -> None:
        super().__init__(params, lr)


class Keywords(Optimizer):
    """Reads a keyword that its signature does not name."""

    def __init__(self, params: Any, **options: Any) -> None:
        super().__init__(params, {"lr": options["lr"]})

    def step(self, closure: Any = None) -> None: ...


class Wrapper(Optimizer):
    """Hands everything to another optimizer."""

    def __init__(self, inner: Optimizer) -> None:
        self.inner, self.defaults = inner, inner.defaults
        self.param_groups, self.state = inner.param_groups, inner.state

    def step(self, closure: Any = None) -> None:
        self.inner.step()


class Lazy(Optimizer):
    """Made from anything, but never holds what it was made from."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__([nn.Parameter(torch.zeros(1))], {"lr": lr})

    def step(self, closure: Any = None) -> None: ...


def lazy(model: nn.Module) -> Optimizer:
    optimizer = Lazy(None)
    optimizer.param_groups = [{"params": list(model.parameters()), "lr": 0.1}]
    return optimizer


STUBBORN: dict[str, tuple[Make, str]] = {
    "a required argument": (lambda m: NeedsMore(m.parameters(), 9, 0.1), "TypeError.*total_steps"),
    "keywords": (lambda m: Keywords(m.parameters(), lr=0.1), "KeyError: 'lr'"),
    "a wrapper": (lambda m: Wrapper(SGD(m.parameters(), lr=0.1)), "the optimizer inside"),
    "other parameters": (lazy, "holds other parameters"),
}


@pytest.mark.parametrize(("make", "why"), STUBBORN.values(), ids=STUBBORN)
def test_an_optimizer_that_cannot_be_rebuilt_is_refused_with_what_to_do(make, why):
    model = net()
    optimizer = make(model)
    small = dafp.prune(model, dafp.trace(model, X), PLAN)
    name = type(optimizer).__name__
    with pytest.raises(PlanError, match=rf"{name}.*{why}.*") as caught:
        dafp.carry_over(optimizer, model, small)
    assert "make an optimizer for small.parameters() yourself" in str(caught.value)


def bare(model: nn.Module) -> Optimizer:
    return Wrapper.__new__(Wrapper)


@pytest.mark.parametrize("make", [lambda m: None, lambda m: m.parameters(), bare],
                         ids=["nothing", "parameters", "without groups"])  # fmt: skip
def test_something_that_is_no_optimizer_is_refused(make):
    model = net()
    small = dafp.prune(model, dafp.trace(model, X), PLAN)
    with pytest.raises(PlanError, match=r"takes a torch\.optim\.Optimizer"):
        dafp.carry_over(make(model), model, small)
