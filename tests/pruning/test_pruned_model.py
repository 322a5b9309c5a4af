"""Pruning itself: what comes out, what stays as it was, and that mistakes are caught."""

import copy

import pytest
import torch
from torch import Tensor, nn

import dafp
from dafp import ChannelGraph, PruningPlan, criteria
from dafp.errors import VerificationError
from dafp.graph import slicing
from dafp.models import build
from dafp.pruning import masking
from dafp.selection import uniform
from support.training import with_random_bn

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
IMAGE = torch.randn(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def net() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 12, 3), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip
    return with_random_bn(model)


def halved(model: nn.Module, x: Tensor = X) -> tuple[nn.Module, ChannelGraph, PruningPlan]:
    graph = dafp.trace(model, x)
    plan = uniform(criteria.l1_norm(model, graph), 0.5)
    return dafp.prune(model, graph, plan), graph, plan


def widths_agree(model: nn.Module) -> bool:
    """Do the layers' own numbers fit their weights?"""
    for m in model.modules():
        if isinstance(m, nn.Conv2d):
            fits = m.weight.shape[:2] == (m.out_channels, m.in_channels // m.groups)
        elif isinstance(m, nn.BatchNorm2d):
            fits = m.weight.shape == m.running_var.shape == (m.num_features,)
        elif isinstance(m, nn.Linear):
            fits = m.weight.shape == (m.out_features, m.in_features)
        else:
            continue
        if not fits:
            return False
    return True


# ---- the result ----------------------------------------------------------------------------------


def test_the_result_is_of_the_same_class_with_smaller_layers():
    small, _, _ = halved(net())
    assert type(small) is nn.Sequential
    assert [type(m) for m in small] == [type(m) for m in net()]
    assert small[0].weight.shape == (4, 3, 3, 3)
    assert small[3].weight.shape == (6, 4, 3, 3)
    assert small[8].weight.shape == (5, 6)


def test_layers_know_their_new_widths():
    small, _, _ = halved(net())
    assert widths_agree(small)
    assert "Conv2d(3, 4" in str(small)


def test_the_result_computes_what_the_masked_model_computes():
    model = net().eval()
    small, graph, plan = halved(model)
    torch.testing.assert_close(small(X), dafp.mask(model, graph, plan)(X))


def test_kept_weights_are_the_originals_own():
    model = net()
    small, graph, plan = halved(model)
    first, second = (list(graph.resolve(plan).keep[name]) for name in ("0", "3"))
    assert torch.equal(small[3].weight, model[3].weight[second][:, first])
    assert torch.equal(small[1].running_var, model[1].running_var[first])
    assert torch.equal(small[8].weight, model[8].weight[:, second])


def test_a_plan_that_keeps_everything_gives_the_same_network():
    model = net().eval()
    small = dafp.prune(model, dafp.trace(model, X), PruningPlan({}))
    assert small is not model
    assert torch.equal(small(X), model(X))


def test_plan_of_shows_the_plan_that_was_applied():
    small, graph, plan = halved(net())
    assert dafp.plan_of(small) == graph.resolve(plan)


def test_the_masked_model_has_the_size_of_the_original_and_zeroed_consumers():
    model = net()
    graph = dafp.trace(model, X)
    masked = dafp.mask(model, graph, PruningPlan({"0": (1, 4)}))
    gone = [0, 2, 3, 5, 6, 7]
    assert masked[3].weight[:, gone].abs().max() == 0
    assert torch.equal(masked[3].weight[:, [1, 4]], model[3].weight[:, [1, 4]])
    assert torch.equal(masked[0].weight, model[0].weight)


def test_a_pruned_model_can_be_pruned_again():
    once, _, _ = halved(net().eval())
    twice, graph, plan = halved(once)
    assert twice[0].out_channels == 2
    torch.testing.assert_close(twice(X), dafp.mask(once, graph, plan)(X))
    assert dafp.plan_of(twice) == graph.resolve(plan)


def test_a_pruned_model_trains_on():
    small, _, _ = halved(net())
    optimizer = torch.optim.SGD(small.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        loss = nn.functional.cross_entropy(small.train()(X), torch.tensor([0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_a_pruned_model_can_be_copied():
    small, _, _ = halved(net().eval())
    twin = copy.deepcopy(small)
    assert torch.equal(twin(X), small(X))
    assert dafp.plan_of(twin) == dafp.plan_of(small)


def test_dropout_in_the_way_keeps_nothing():
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Dropout(0.5), nn.Conv2d(8, 6, 3), nn.Dropout2d(0.5),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.3), nn.Linear(6, 4),
    )  # fmt: skip
    small, graph, _ = halved(model.eval())
    assert [group.name for group in graph.groups] == ["0", "3"]
    assert (small[0].out_channels, small[3].out_channels) == (4, 3)


# ---- the original --------------------------------------------------------------------------------


def test_the_original_is_left_exactly_as_it_was():
    model = net().train()
    model[1].eval()
    nn.functional.cross_entropy(model(X), torch.tensor([0, 1])).backward()
    tensors = {n: (id(t), t.clone()) for n, t in model.state_dict(keep_vars=True).items()}
    gradients = {n: p.grad.clone() for n, p in model.named_parameters()}
    modes = [m.training for m in model.modules()]
    attributes = [set(vars(m)) for m in model.modules()]
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    graph = dafp.trace(model, X)
    plan = uniform(criteria.shift_aware(model, graph), 0.5)
    dafp.prune(model, graph, plan, compensate=True)
    dafp.mask(model, graph, plan, compensate=True)
    dafp.cost(model, X)
    for name, tensor in model.state_dict(keep_vars=True).items():
        assert id(tensor) == tensors[name][0]
        assert torch.equal(tensor, tensors[name][1])
    assert all(torch.equal(p.grad, gradients[n]) for n, p in model.named_parameters())
    assert [m.training for m in model.modules()] == modes
    assert [set(vars(m)) for m in model.modules()] == attributes
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks


def test_the_result_shares_no_memory_with_the_original():
    model = net()
    graph = dafp.trace(model, X)
    small = dafp.prune(model, graph, PruningPlan({"0": (0, 1, 2)}))
    ours = {t.data_ptr() for t in small.state_dict().values()}
    assert ours.isdisjoint({t.data_ptr() for t in model.state_dict().values()})


def test_the_callers_random_numbers_are_not_used_up():
    model = net()
    state = torch.get_rng_state()
    halved(model)
    assert torch.equal(torch.get_rng_state(), state)


def test_modes_survive_module_by_module():
    model = net().train()
    model[4].eval()
    small, _, _ = halved(model)
    assert [m.training for m in small.modules()] == [m.training for m in model.modules()]


def test_frozen_parameters_stay_frozen():
    model = net()
    model[0].weight.requires_grad_(False)
    model[4].bias.requires_grad_(False)
    small, _, _ = halved(model)
    frozen = {n for n, p in small.named_parameters() if not p.requires_grad}
    assert frozen == {"0.weight", "4.bias"}


def test_a_network_that_is_frozen_altogether_can_be_pruned():
    model = net().requires_grad_(False)
    small, _, _ = halved(model)
    assert not any(p.requires_grad for p in small.parameters())


def test_gradients_do_not_come_along():
    model = net()
    model(X).sum().backward()
    small, _, _ = halved(model)
    assert all(p.grad is None for p in small.parameters())


def test_hooks_of_the_user_survive():
    model = net()
    calls: list[int] = []

    def hook(module: nn.Module, args: tuple[Tensor], out: Tensor) -> None:
        calls.append(out.shape[1])

    model[3].register_forward_hook(hook)
    small, _, _ = halved(model)
    calls.clear()
    small(X)
    assert calls == [6]


def test_attributes_of_the_user_survive():
    model = net()
    model.classes = ["cat", "dog"]
    small, _, _ = halved(model)
    assert small.classes == ["cat", "dog"]
    assert small.classes is not model.classes


def test_channels_last_weights_stay_channels_last():
    model = net().to(memory_format=torch.channels_last)
    small, _, _ = halved(model, X.to(memory_format=torch.channels_last))
    for layer in (small[0], small[3]):
        assert layer.weight.is_contiguous(memory_format=torch.channels_last)
        assert not layer.weight.is_contiguous()


def test_contiguous_weights_stay_contiguous():
    small, _, _ = halved(net())
    assert all(p.is_contiguous() for p in small.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_precisions_are_pruned_and_verified(dtype):
    model = net().to(dtype).eval()
    small, graph, plan = halved(model, X.to(dtype))
    assert {p.dtype for p in small.parameters()} == {dtype}
    masked = dafp.mask(model, graph, plan)
    torch.testing.assert_close(
        small.float()(X), masked.float()(X), rtol=1e-4, atol=1e-5
    )  # verified in a precision that can tell


# ---- residual streams ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def preresnet() -> tuple[nn.Module, ChannelGraph]:
    torch.manual_seed(0)
    model = with_random_bn(build("preresnet20", width=0.5)).eval()
    return model, dafp.trace(model, IMAGE)


@pytest.fixture(scope="module")
def selected(preresnet) -> nn.Module:
    """Every group halved, selections included."""
    model, graph = preresnet
    return dafp.prune(model, graph, uniform(criteria.dependency_aware(model, graph), 0.5))


def test_consumers_of_the_stream_form_selection_groups_of_their_own(preresnet):
    _, graph = preresnet
    chosen = {g.name for g in graph.groups if g.kind == "selection"}
    assert chosen == {
        "stages.0.1.bn1", "stages.1.0.bn1", "stages.1.1.bn1", "stages.2.0.bn1",
        "stages.2.1.bn1", "bn",
    }  # fmt: skip
    assert all(not g.producers for g in graph.groups if g.kind == "selection")


def test_the_inner_filters_of_every_block_can_be_pruned(preresnet):
    _, graph = preresnet
    inner = {f"stages.{s}.{b}.conv{c}" for s in range(3) for b in range(2) for c in (1, 2)}
    assert {g.name for g in graph.groups if g.kind == "filter"} == inner | {"conv1"}


def test_the_stream_is_kept_with_the_reason(preresnet):
    _, graph = preresnet
    kept = {k.name: k for k in graph.kept}
    assert "residual" in kept["stages.0.0.conv3"].reason
    assert "couple" in graph.explain("stages.0.0.conv3")


def test_selections_are_integer_buffers(selected):
    indices = {n: b for n, b in selected.named_buffers() if n.endswith(".index")}
    assert indices
    assert {b.dtype for b in indices.values()} == {torch.int64}


def test_a_norm_whose_only_consumer_selects_is_narrowed_itself(selected):
    block = selected.stages[0][1]
    assert block.bn1.index.numel() == block.bn1.num_features == block.conv1.in_channels == 16
    assert not hasattr(block.conv1, "index")


def test_a_norm_that_a_projection_uses_too_stays_whole_and_the_consumer_selects(selected):
    block = selected.stages[1][0]
    assert block.bn1.num_features == block.downsample.in_channels == 32
    assert block.conv1.index.numel() == block.conv1.in_channels == 16
    assert not hasattr(block.bn1, "index")
    assert not hasattr(block.downsample, "index")


def test_a_linear_consumer_of_the_stream_selects_too(selected):
    assert selected.bn.index.numel() == selected.bn.num_features == 64
    assert selected.fc.in_features == 64


def test_the_stream_keeps_its_width(preresnet, selected):
    model, _ = preresnet
    for name in ("stages.0.0.conv3", "stages.0.1.conv3", "stages.1.0.conv3", "stages.2.1.conv3"):
        before, after = model.get_submodule(name), selected.get_submodule(name)
        assert after.out_channels == before.out_channels
        assert after.weight.shape[0] == before.weight.shape[0]


def test_projections_read_and_make_the_full_stream(preresnet, selected):
    model, _ = preresnet
    for stage in (1, 2):
        before, after = model.stages[stage][0].downsample, selected.stages[stage][0].downsample
        assert torch.equal(after.weight, before.weight)


def test_names_of_parameters_are_those_of_the_original(preresnet, selected):
    model, _ = preresnet
    assert [n for n, _ in selected.named_parameters()] == [n for n, _ in model.named_parameters()]


def test_a_model_with_selections_can_be_copied_and_filled_from_a_state_dict(selected):
    twin = copy.deepcopy(selected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin.load_state_dict(selected.state_dict())
    assert torch.equal(twin.eval()(IMAGE), selected.eval()(IMAGE))


def test_a_model_with_selections_knows_its_widths(selected):
    assert widths_agree(selected)


def test_a_model_with_selections_can_be_pruned_again(selected):
    graph = dafp.trace(selected, IMAGE)
    assert {g.kind for g in graph.groups} == {"filter", "selection"}
    plan = uniform(criteria.dependency_aware(selected, graph), 0.5)
    twice = dafp.prune(selected, graph, plan)
    torch.testing.assert_close(twice(IMAGE), dafp.mask(selected, graph, plan)(IMAGE))
    assert twice.stages[0][1].bn1.index.numel() == 8
    assert twice.stages[1][0].conv1.index.numel() == 8


def test_consumers_that_select_leave_everything_else_unchanged(preresnet):
    model, graph = preresnet
    small = dafp.prune(model, graph, PruningPlan({"stages.1.0.bn1": (3, 7, 30)}))
    assert small.stages[1][0].conv1.index.tolist() == [3, 7, 30]
    changed = {
        n for n, p in small.named_parameters() if p.shape != model.get_parameter(n).shape
    }  # fmt: skip
    assert changed == {"stages.1.0.conv1.weight"}


def test_coupling_prunes_the_stream_jointly():
    torch.manual_seed(0)
    model = with_random_bn(build("preresnet20", width=0.5)).eval()
    graph = dafp.trace(model, IMAGE, residual="couple")
    assert {g.kind for g in graph.groups} == {"filter"}
    small = dafp.prune(model, graph, uniform(criteria.l1_norm(model, graph), 0.5))
    stage = small.stages[0]
    assert stage[0].conv3.out_channels == stage[0].downsample.out_channels == 16
    assert stage[1].bn1.num_features == stage[1].conv3.out_channels == 16
    assert not [n for n, _ in small.named_buffers() if n.endswith("index")]
    assert widths_agree(small)


def test_coupling_prunes_the_stream_of_a_post_activation_network():
    torch.manual_seed(0)
    model = with_random_bn(build("resnet8", width=0.5)).eval()
    graph = dafp.trace(model, IMAGE, residual="couple")
    assert graph.filters > dafp.trace(model, IMAGE).filters
    small = dafp.prune(model, graph, uniform(criteria.l1_norm(model, graph), 0.5))
    assert small.conv1.out_channels == small.stages[0][0].conv2.out_channels == 4


# ---- mistakes are caught -------------------------------------------------------------------------


def wrong_order(tensor: Tensor, axes: dict[int, Tensor]) -> Tensor:
    out = tensor.detach()
    for dim, positions in axes.items():
        out = out.index_select(dim, positions)
    return out.flip(0).clone()


def too_few(tensor: Tensor, axes: dict[int, Tensor]) -> Tensor:
    out = tensor.detach()
    for dim, positions in axes.items():
        out = out.index_select(dim, positions[1:] if dim else positions)
    return out.clone()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_prune_does_not_return_a_model_with_mixed_up_channels(monkeypatch, dtype):
    model = net().to(dtype)
    graph = dafp.trace(model, X.to(dtype))
    plan = uniform(criteria.l1_norm(model, graph), 0.5)
    monkeypatch.setattr(slicing, "slice_tensor", wrong_order)
    with pytest.raises(VerificationError, match="differs from the masked model"):
        dafp.prune(model, graph, plan)


def test_prune_raises_a_verification_error_if_the_result_does_not_run(monkeypatch):
    model = net()
    graph = dafp.trace(model, X)
    plan = uniform(criteria.l1_norm(model, graph), 0.5)
    monkeypatch.setattr(slicing, "slice_tensor", too_few)
    with pytest.raises(VerificationError):
        dafp.prune(model, graph, plan)


def test_a_small_mistake_in_one_weight_is_found(monkeypatch):
    model = net()
    graph = dafp.trace(model, X)
    plan = uniform(criteria.l1_norm(model, graph), 0.5)
    right = slicing.slice_tensor

    def nearly(tensor: Tensor, axes: dict[int, Tensor]) -> Tensor:
        out = right(tensor, axes)
        return out * 1.001 if tensor.dim() == 2 else out

    monkeypatch.setattr(slicing, "slice_tensor", nearly)
    with pytest.raises(VerificationError, match="allowed: 1e-05"):
        dafp.prune(model, graph, plan)


# ---- the oracle that lends weights -------------------------------------------------------------


class ReadFromOutside(nn.Module):
    """Its second convolution never runs: somebody else reads its weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.norm, self.second = (
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 4, 3),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.first(x)).relu()
        return nn.functional.conv2d(x, self.second.weight, self.second.bias)


@pytest.mark.parametrize("make", [net, ReadFromOutside, lambda: build("preresnet20", width=0.25)])
def test_the_temporary_oracle_agrees_with_the_masked_model_or_the_masked_model_is_used(make):
    model = with_random_bn(make()).eval()
    x = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    graph = dafp.trace(model, x)
    plan = graph.resolve(uniform(criteria.l1_norm(model, graph), 0.5))
    with torch.no_grad():
        lending = masking.masked_while_running(model, graph, plan, compensate=True)(x)
        whole = dafp.mask(model, graph, plan, compensate=True)(x)
    assert torch.equal(lending, whole) is (make is not ReadFromOutside)
    small = dafp.prune(model, graph, plan, compensate=True).eval()
    torch.testing.assert_close(small(x), whole, rtol=1e-4, atol=1e-4)
    assert sum(p.numel() for p in small.parameters()) < 0.7 * sum(
        p.numel() for p in model.parameters()
    )


def test_the_lending_oracle_has_no_weights_of_its_own_and_leaves_the_models_alone():
    model = net().eval()
    graph = dafp.trace(model, X)
    plan = graph.resolve(uniform(criteria.l1_norm(model, graph), 0.5))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    masked = masking.masked_while_running(model, graph, plan, compensate=True)
    with torch.no_grad():
        masked(X)
        with pytest.raises(RuntimeError):
            masked(X[:, :2])  # a forward that fails gives back what it was lent as well
    for mine, theirs in zip(model.parameters(), masked.parameters(), strict=True):
        assert (mine.data_ptr() == theirs.data_ptr()) is (mine.dim() > 1)
    after = model.state_dict()
    assert all(torch.equal(tensor, after[name]) for name, tensor in before.items())


class Clamped(nn.Conv2d):
    """Bounds its own weights whenever it runs, in place."""

    def forward(self, x: Tensor) -> Tensor:
        self.weight.data.clamp_(-0.1, 0.1)
        return super().forward(x)


def test_a_layer_that_writes_into_its_weights_writes_into_none_of_the_users():
    torch.manual_seed(0)
    layers = (Clamped(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), Clamped(8, 4, 3), nn.Flatten())
    model = nn.Sequential(*layers, nn.Linear(4 * 16, 5)).eval()
    before = [parameter.clone() for parameter in model.parameters()]
    graph = dafp.trace(model, X)
    plan = graph.resolve(uniform(criteria.l1_norm(model, graph), 0.5))
    with torch.no_grad():
        masking.masked_while_running(model, graph, plan, compensate=False)(X)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert sum(len(kept) for kept in plan.keep.values()) == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_lending_oracle_forgets_what_it_masks_whatever_that_is(dtype, layout):
    model = net().eval().to(dtype=dtype, memory_format=layout)
    graph = dafp.trace(model, X.to(dtype))
    plan = graph.resolve(PruningPlan({graph.groups[0].name: (1, 3, 4)}))
    weight = model.get_submodule(graph.groups[0].consumers[0].param.rpartition(".")[0]).weight
    weight.data[:, 0] = float("nan")  # of a channel that the plan removes
    weight.data[:, 2] = float("inf")
    with torch.no_grad():
        masked = masking.masked_while_running(model, graph, plan, compensate=False)
        lending, whole = masked(X.to(dtype)), dafp.mask(model, graph, plan)(X.to(dtype))
    assert bool(whole.isfinite().all())
    assert torch.equal(lending, whole)
    assert sum(len(kept) for kept in plan.keep.values()) < graph.filters
