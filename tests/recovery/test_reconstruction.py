"""Reconstruction: closed forms, what is lost and what is not, and input that it refuses."""

import contextlib
import copy
import re

import pytest
import torch
from torch import nn

import dafp
from dafp.errors import PlanError
from dafp.recovery import layer_goals, reconstruction_of


def relative_error(model, other, x) -> float:
    with torch.no_grad():
        a, b = model(x), other(x)
    return float((a - b).square().sum() / (a - a.mean(0)).square().sum())


def conv_net(padding: int = 0) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3, padding=padding),
        nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 1),
    ).eval()  # fmt: skip


def test_two_linear_layers_by_hand():
    """y = w·h, h = A·x, x ~ N(0, I): without h₂, the best weight of h₁ is cov(y, h₁) / var(h₁)."""
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1))
    with torch.no_grad():
        net[0].weight.copy_(torch.tensor([[1.0, 0.0], [2.0, 1.0]]))
        net[1].weight.copy_(torch.tensor([[3.0, 4.0]]))
        net[1].bias.fill_(0.5)
    corners = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    x = corners.repeat_interleave(4, 0) + 10.0  # mean 10, covariance I, also among held-out rows
    graph = dafp.trace(net, x)
    rebuilt = dafp.reconstruct(net, graph, dafp.PruningPlan({"0": (0,)}), [x])
    # y = 3·h₁ + 4·(2·h₁ + x₂): the slope is 11, and 4·mean(x₂) = 40 goes to the bias
    assert rebuilt[1].weight[0].tolist() == pytest.approx([11.0, 0.0], rel=1e-3)
    assert rebuilt[1].bias.item() == pytest.approx(40.5, rel=1e-3)
    assert net[1].weight[0].tolist() == [3.0, 4.0]


def test_a_channel_that_copies_another_is_removed_at_no_loss():
    net, x = conv_net(padding=1), torch.randn(64, 3, 10, 10)
    with torch.no_grad():
        for tensor in (net[0].weight, net[0].bias, *net[1].parameters(), *net[1].buffers()):
            if tensor.dim():
                tensor[5] = tensor[2]
    graph = dafp.trace(net, x)
    plan = dafp.PruningPlan({"0": (0, 1, 2, 3, 4, 6, 7)})
    small = dafp.prune(dafp.reconstruct(net, graph, plan, [x]), graph, plan)
    assert small[0].out_channels == 7
    assert relative_error(net, small, torch.randn(16, 3, 10, 10)) < 1e-6
    assert relative_error(net, dafp.prune(net, graph, plan), x) > 1e-3


@pytest.mark.parametrize("behind", ["bias", "norm"])
def test_a_constant_channel_is_removed_at_no_loss_through_the_mean(behind):
    net, x = conv_net(), torch.randn(64, 3, 10, 10)
    with torch.no_grad():
        net[1].weight[5], net[1].bias[5] = 0.0, 0.7
    if behind == "norm":
        net[3].bias = None
    graph = dafp.trace(net, x)
    plan = dafp.PruningPlan({"0": (0, 1, 2, 3, 4, 6, 7)})
    small = dafp.prune(dafp.reconstruct(net, graph, plan, [x]), graph, plan)
    assert small[0].out_channels == 7
    assert relative_error(net, small, torch.randn(16, 3, 10, 10)) < 1e-6
    assert relative_error(net, dafp.prune(net, graph, plan), x) > 1e-4


def test_rebuilding_brings_outputs_nearer_on_images_it_has_not_seen():
    net, x, fresh = conv_net(1), torch.randn(200, 3, 10, 10), torch.randn(64, 3, 10, 10)
    graph = dafp.trace(net, x)
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(net, graph), 0.5)
    rebuilt = dafp.reconstruct(net, graph, plan, [x[:100], x[100:]])
    small = dafp.prune(rebuilt, graph, plan)
    assert (small[0].out_channels, small[3].out_channels) == (4, 3)
    masked = dafp.mask(net, graph, plan)
    assert relative_error(net, small, fresh) < 0.7 * relative_error(net, masked, fresh)
    report = reconstruction_of(rebuilt)
    assert [layer.weight for layer in report.layers] == ["3.weight", "6.weight"]
    assert all(layer.error_after < layer.error_before for layer in report.layers)
    assert report.in_order
    assert "2 consumers rebuilt in the order of the forward pass, from 200 images" in str(report)


def test_layers_in_order_are_nearer_than_all_at_once_and_both_than_none():
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 12, 3, padding=1), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(12, 12, 3, padding=1), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Conv2d(12, 4, 1)).eval()
    for layer in net[::2]:
        nn.init.kaiming_normal_(layer.weight)
    x, fresh = torch.randn(100, 3, 8, 8), torch.randn(64, 3, 8, 8)
    graph = dafp.trace(net, x)
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(net, graph), 0.25)
    in_order = dafp.reconstruct(net, graph, plan, [x])
    at_once = dafp.reconstruct(net, graph, plan, [x], memory=1)
    errors = [
        relative_error(net, m, fresh) for m in (in_order, at_once, dafp.mask(net, graph, plan))
    ]
    assert errors[0] < 0.97 * errors[1]
    assert errors[1] < 0.9 * errors[2]
    report = reconstruction_of(at_once)
    assert not report.in_order
    assert "GiB is allowed" in report.notes[0]


def test_batches_of_several_sizes_are_rebuilt_at_once_and_the_report_says_so():
    net = conv_net(1)
    graph = dafp.trace(net, torch.randn(1, 3, 10, 10))
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(net, graph), 0.5)
    batches = [torch.randn(20, 3, size, size) for size in (8, 10, 12, 14)]
    rebuilt = dafp.reconstruct(net, graph, plan, batches)
    assert "shapes differ" in reconstruction_of(rebuilt).notes[0]
    fresh = torch.randn(64, 3, 10, 10)
    masked = dafp.mask(net, graph, plan)
    assert relative_error(net, rebuilt, fresh) < 0.8 * relative_error(net, masked, fresh)


class Twice(nn.Module):
    """One convolution consumes two tensors."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.shared = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        x = torch.relu(self.first(x))
        return self.last(torch.relu(self.shared(torch.relu(self.shared(x)))))


def test_a_module_that_is_used_twice_is_one_system_over_both_calls():
    torch.manual_seed(0)
    net, x, fresh = Twice().eval(), torch.randn(100, 3, 8, 8), torch.randn(64, 3, 8, 8)
    graph = dafp.trace(net, x)
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(net, graph), 0.25)
    rebuilt = dafp.reconstruct(net, graph, plan, [x])
    assert "shared.weight" in [layer.weight for layer in reconstruction_of(rebuilt).layers]
    masked = dafp.mask(net, graph, plan)
    assert relative_error(net, rebuilt, fresh) < 0.8 * relative_error(net, masked, fresh)
    assert dafp.prune(rebuilt, graph, plan).first.out_channels == 6


class Blocks(nn.Module):
    """Residual blocks; the last layer of each can correct what the ones before it have lost."""

    def __init__(self, norm: bool, inplace: bool):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.inner = nn.ModuleList(nn.Conv2d(8, 16, 3, padding=1) for _ in range(4))
        self.outer = nn.ModuleList(nn.Conv2d(16, 8, 3, padding=1, bias=not norm) for _ in range(4))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) if norm else nn.Identity() for _ in range(4))
        self.inplace = inplace

    def forward(self, x):
        x = self.stem(x)
        for inner, outer, norm in zip(self.inner, self.outer, self.norms, strict=True):
            out = norm(outer(torch.relu(inner(x))))
            if self.inplace:
                out += x
                x = out
            else:
                x = x + out
        return x


@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
def test_the_error_of_a_residual_stream_is_corrected_by_the_next_block(norm, inplace, monkeypatch):
    torch.manual_seed(0)
    net, x, fresh = Blocks(norm, inplace).eval(), *torch.randn(2, 100, 3, 8, 8)
    for layer in (*net.inner, *net.outer):
        nn.init.kaiming_normal_(layer.weight)
    for layer in net.norms if norm else ():
        nn.init.uniform_(layer.weight, -1, 1)
    graph = dafp.trace(net, x)
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(net, graph), 0.5)
    corrected = dafp.reconstruct(net, graph, plan, [x])
    assert dafp.prune(corrected, graph, plan).inner[0].out_channels == 8
    monkeypatch.setattr(layer_goals, "watch_sums", lambda *_: contextlib.nullcontext())
    alone = dafp.reconstruct(net, graph, plan, [x])
    assert relative_error(net, corrected, fresh) < 0.97 * relative_error(net, alone, fresh)
    masked = dafp.mask(net, graph, plan)
    assert relative_error(net, alone, fresh) < 0.9 * relative_error(net, masked, fresh)


class Functional(nn.Module):
    """The weight of a layer that is never called."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x):
        return nn.functional.conv2d(torch.relu(self.first(x)), self.second.weight, padding=1)


def test_a_consumer_that_is_a_function_call_is_left_masked_and_listed():
    torch.manual_seed(0)
    net, x = Functional().eval(), torch.randn(32, 3, 8, 8)
    graph = dafp.trace(net, x)
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(net, graph), 0.5)
    rebuilt = dafp.reconstruct(net, graph, plan, [x])
    assert "not called" in reconstruction_of(rebuilt).skipped["second.weight"]
    assert torch.equal(rebuilt.second.weight, dafp.mask(net, graph, plan).second.weight)
    assert dafp.prune(rebuilt, graph, plan).first.out_channels == 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_float32_and_returned_as_it_was(dtype):
    half, x = conv_net(1).to(dtype), torch.randn(64, 3, 10, 10).to(dtype)
    whole = copy.deepcopy(half).float()
    graphs = dafp.trace(half, x), dafp.trace(whole, x.float())
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(half, graphs[0]), 0.5)
    rebuilt = dafp.reconstruct(half, graphs[0], plan, [x])
    full = dafp.reconstruct(whole, graphs[1], plan, [x.float()])
    assert len(plan.keep["0"]) == 4
    assert {p.dtype for p in rebuilt.parameters()} == {dtype}
    for name, tensor in rebuilt.state_dict().items():
        assert torch.equal(tensor, full.state_dict()[name].to(tensor.dtype))


def test_equal_calls_give_equal_bits_and_the_memory_format_stays():
    net = conv_net(1).to(memory_format=torch.channels_last)
    x = torch.randn(32, 3, 10, 10).to(memory_format=torch.channels_last)
    graph = dafp.trace(net, x)
    plan = dafp.selection.uniform(dafp.criteria.l1_norm(net, graph), 0.5)
    first, second = (dafp.reconstruct(net, graph, plan, [x]) for _ in range(2))
    for name, tensor in first.state_dict().items():
        assert torch.equal(tensor, second.state_dict()[name])
    assert first[3].weight.is_contiguous(memory_format=torch.channels_last)


def nothing_is_changed(net, before):
    return all(torch.equal(before[name], value) for name, value in net.state_dict().items())


BAD = {
    "a tensor": (torch.zeros(4, 3, 10, 10), "takes batches, one after another, not a Tensor"),
    "no batches": ([], "got no batches; give it at least one"),
    "an empty batch": ([torch.zeros(0, 3, 10, 10)], "has no rows"),
    "one image": ([torch.randn(1, 3, 10, 10)], "got one image; it needs at least 2"),
    "equal images": ([torch.ones(8, 3, 10, 10)] * 2, "all 16 images that"),
    "NaN": ([torch.full((4, 3, 10, 10), torch.nan)], "batch 0 (float32 [4, 3, 10, 10]) holds NaN"),
    "wrong shape": ([torch.randn(8, 4, 10, 10)], "does not run on batch 0 (float32 ["),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("call", ["reconstruct", "criterion", "damage", "slim"])
def test_calibration_data_that_cannot_be_used_is_refused_and_nothing_changes(name, call):
    given, words = BAD[name]
    net, x = conv_net(), torch.randn(2, 3, 10, 10)
    before = copy.deepcopy(net.state_dict())
    graph = dafp.trace(net, x)
    scores = dafp.criteria.l1_norm(net, graph)
    plan = dafp.selection.uniform(scores, 0.5)
    calls = {
        "reconstruct": lambda: dafp.reconstruct(net, graph, plan, given),
        "criterion": lambda: dafp.criteria.reconstruction_error(net, graph, given),
        "damage": lambda: dafp.recovery.measure_damage(net, graph, scores, given),
        "slim": lambda: dafp.slim(net, x, 0.5, data=given),
    }
    with pytest.raises(PlanError, match=re.escape(words)):
        calls[call]()
    assert nothing_is_changed(net, before)


def test_activations_that_overflow_are_refused_with_the_name_of_the_layer():
    net, x = conv_net(), torch.randn(8, 3, 10, 10)
    with torch.no_grad():
        net[1].bias.fill_(float("inf"))
    graph = dafp.trace(net, x)
    plan = dafp.PruningPlan({"0": (0, 1)})
    with pytest.raises(PlanError, match="of '3' holds NaN or infinity"):
        dafp.reconstruct(net, graph, plan, [x])


def test_a_singular_gram_matrix_is_damped():
    """Six of eight inputs are zero on all images."""
    net, x = conv_net(), torch.randn(32, 3, 10, 10)
    with torch.no_grad():
        net[1].weight[:6], net[1].bias[:6] = 0.0, -1.0
    graph = dafp.trace(net, x)
    plan = dafp.PruningPlan({"0": (0, 1, 6, 7)})
    small = dafp.prune(dafp.reconstruct(net, graph, plan, [x]), graph, plan)
    assert small[0].out_channels == 4
    assert relative_error(net, small, x) < 1e-8


def test_a_model_that_was_not_rebuilt_has_no_report():
    with pytest.raises(PlanError, match=r"not a result of dafp\.reconstruct"):
        reconstruction_of(conv_net())


def test_the_old_name_warns():
    from dafp.repair import repair  # noqa: PLC0415

    net, x = conv_net(), torch.randn(8, 3, 10, 10)
    graph = dafp.trace(net, x)
    with pytest.warns(DeprecationWarning, match=r"dafp\.repair\.repair is now dafp\.reconstruct"):
        repair(net, graph, dafp.PruningPlan({"0": (0, 1)}), [x])
