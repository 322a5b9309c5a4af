"""`dafp.bake`: computed weights become plain ones, with equal outputs, so that channels can go."""

import pytest
import torch
from torch import nn
from torch.nn.functional import conv2d, pad
from torch.nn.utils import parametrizations

import dafp
from dafp.errors import ModelError, VerificationError
from dafp.network.baking import SameConv2d, has_computed_weight, plain_convolution


class Standardised(nn.Conv2d):
    def plain_weight(self):
        weight = self.weight
        mean = weight.mean((1, 2, 3), keepdim=True)
        return (weight - mean) / (weight.var((1, 2, 3), keepdim=True) + 1e-6).sqrt()

    def forward(self, x):
        return conv2d(x, self.plain_weight(), self.bias, self.stride, self.padding)


class StandardisedSame(Standardised):
    def forward(self, x):
        sides = []
        for size in (x.shape[3], x.shape[2]):
            both = max(0, (-(-size // 2) - 1) * 2 + 3 - size)
            sides += [both // 2, both - both // 2]
        return conv2d(pad(x, sides), self.plain_weight(), self.bias, 2)


class Routed(nn.Conv2d):
    """A weight that depends on the input."""

    def forward(self, x):
        return conv2d(x, self.weight * x.mean(), self.bias)


KINDS = {
    "weight_norm": lambda a, b: parametrizations.weight_norm(nn.Conv2d(a, b, 3)),
    "spectral_norm": lambda a, b: parametrizations.spectral_norm(nn.Conv2d(a, b, 3)),
    "older weight_norm": lambda a, b: nn.utils.weight_norm(nn.Conv2d(a, b, 3)),
    "older spectral_norm": lambda a, b: nn.utils.spectral_norm(nn.Conv2d(a, b, 3)),
    "standardised": lambda a, b: Standardised(a, b, 3),
    "standardised, SAME": lambda a, b: StandardisedSame(a, b, 3, 2),
}


def net_of(kind):
    torch.manual_seed(0)
    make = KINDS[kind]
    return nn.Sequential(
        make(3, 8), nn.BatchNorm2d(8), nn.ReLU(), make(8, 12), nn.ReLU(), nn.Conv2d(12, 4, 1)
    )


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_all_hidden_channels_can_be_pruned_after_baking_and_outputs_are_equal(kind):
    net, x = net_of(kind).eval(), torch.randn(2, 3, 16, 16)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    graph = dafp.trace(net, x)
    baked = dafp.bake(net, x)
    for size in (16, 17, 23):
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(baked(x), net(x), rtol=1e-4, atol=1e-5)
    after = dafp.trace(baked, x)
    assert (graph.prunable_filters, after.prunable_filters, after.all_filters) in (
        (8, 20, 24), (12, 20, 24), (0, 20, 24),
    )  # fmt: skip
    small = dafp.slim(baked, x, 0.5)
    assert small[0].out_channels + small[3].out_channels == 10
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])
    assert {type(layer) for layer in (baked[0], baked[3])} <= {nn.Conv2d, SameConv2d}
    small(x).sum().backward()
    assert small[0].weight.grad.abs().sum() > 0


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_the_reason_for_keeping_channels_names_the_layer_and_bake(kind):
    graph = dafp.trace(net_of(kind), torch.zeros(1, 3, 16, 16))
    advised = [kept for kept in graph.kept if "dafp.bake(model) makes it plain" in kept.reason]
    assert sum(kept.size for kept in advised) >= 8
    assert "the weight of '3' is computed" in " ".join(kept.reason for kept in advised)
    plain = dafp.trace(dafp.bake(net_of(kind)), torch.zeros(1, 3, 16, 16))
    assert not any("bake" in kept.reason for kept in plain.kept)


def test_weights_that_depend_on_the_input_stay_as_they_are():
    layer = Routed(3, 4, 3)
    with torch.no_grad():
        assert plain_convolution(layer) is None
    assert type(dafp.bake(nn.Sequential(layer))[0]) is Routed


def test_a_convolution_with_a_plain_weight_is_left_alone():
    class Padded(nn.Conv2d):
        def forward(self, x):
            return super().forward(pad(x, (1, 1, 1, 1)))

    assert not has_computed_weight(nn.Conv2d(3, 4, 3))
    assert not has_computed_weight(Padded(3, 4, 3))
    assert type(dafp.bake(Padded(3, 4, 3))) is Padded


def test_the_spectral_norm_of_eval_mode_is_baked_also_from_train_mode():
    net = net_of("spectral_norm").train()
    baked = dafp.bake(net)
    assert all(module.training for module in baked.modules())
    x = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(baked.eval()(x), net.eval()(x))


def test_modes_stay_as_they_are():
    net = net_of("standardised").train()
    net[3].eval()
    baked = dafp.bake(net)
    assert [layer.training for layer in baked] == [True, True, True, False, True, True]
    assert dafp.bake(Standardised(3, 4, 3)).training


def test_tracing_calls_no_layer_of_the_users_model():
    net, called = net_of("standardised"), []
    net[0].register_forward_hook(lambda *_: called.append("hook"))
    state = torch.random.get_rng_state()
    graph = dafp.trace(net, torch.zeros(1, 3, 16, 16))
    assert any("bake" in kept.reason for kept in graph.kept)
    called.clear()
    assert has_computed_weight(net[0])
    assert called == []
    assert torch.equal(torch.random.get_rng_state(), state)


def test_shared_layers_stay_shared_and_frozen_ones_frozen():
    layer = Standardised(3, 3, 3, padding=1)
    layer.weight.requires_grad_(False)
    baked = dafp.bake(nn.ModuleList([layer, nn.Sequential(layer)]))
    assert baked[0] is baked[1][0]
    assert type(baked[0]) is nn.Conv2d
    assert not baked[0].weight.requires_grad


def test_a_copy_that_computes_something_else_is_refused(monkeypatch):
    net = net_of("standardised")
    monkeypatch.setattr("dafp.network.baking.plain_convolution", lambda layer: None)
    dafp.bake(net, torch.zeros(1, 3, 16, 16))
    wrong = nn.Conv2d(3, 8, 3)
    monkeypatch.setattr(
        "dafp.network.baking.plain_convolution",
        lambda layer: wrong if getattr(layer, "in_channels", 0) == 3 else None,
    )
    with pytest.raises(VerificationError, match="the baked model computes something else"):
        dafp.bake(net, torch.randn(1, 3, 16, 16))
    with pytest.raises(ModelError, match=r"expected an nn\.Module, not a str"):
        dafp.bake("net.pt")


def test_a_pruned_baked_model_is_saved_and_loaded(tmp_path):
    x = torch.randn(1, 3, 16, 16)
    small = dafp.slim(dafp.bake(net_of("standardised"), x), x, 0.5)
    dafp.save(small, tmp_path / "small.safetensors")
    again = dafp.load(tmp_path / "small.safetensors", dafp.bake(net_of("standardised")))
    assert torch.equal(again.eval()(x), small.eval()(x))
    assert again[0].out_channels + again[3].out_channels == 10


class Attending(nn.Module):
    """torch's attention, between linear layers."""

    def __init__(self, **options):
        super().__init__()
        torch.manual_seed(0)
        self.enter, self.leave = nn.Linear(6, 8), nn.Linear(8, 3)
        self.attention = nn.MultiheadAttention(8, 4, **options)
        if self.attention.out_proj.bias is not None:
            nn.init.normal_(self.attention.out_proj.bias)

    def forward(self, x):
        x = self.enter(x)
        mask = torch.ones(x.shape[-2], x.shape[-2], dtype=torch.bool).triu(1)
        if not self.attention.batch_first:
            x = x.transpose(0, 1)
        y, _ = self.attention(x, x, x, attn_mask=mask, need_weights=False)
        return self.leave(y)


@pytest.mark.parametrize("options", [{}, {"batch_first": True}, {"bias": False}])
def test_heads_of_torchs_attention_can_be_pruned_after_baking(options):
    model, x = Attending(**options).eval(), torch.randn(2, 5, 6)
    kept = {entry.name: entry.reason for entry in dafp.trace(model, x).kept}
    assert "dafp.bake(model)" in kept["attention"]
    baked = dafp.bake(model, x)
    torch.testing.assert_close(baked(x), model(x))
    graph = dafp.trace(baked, x)
    assert graph["attention.q_proj"].size == 4
    small = dafp.prune(baked, graph, dafp.PruningPlan({"attention.q_proj": (0, 2, 3)}))
    assert small.attention.num_heads == 3
    assert small.attention.out_proj.weight.shape == (8, 6)
    assert dafp.cost(small, x) == dafp.plan_of(small).after


@pytest.mark.parametrize("batch_first", [False, True])
def test_baked_attention_takes_the_arguments_of_torchs(batch_first):
    torch.manual_seed(0)
    whole = nn.MultiheadAttention(8, 2, batch_first=batch_first, kdim=6, vdim=4).eval()
    baked = dafp.bake(whole)
    q, k, v = torch.randn(3, 5, 8), torch.randn(3, 7, 6), torch.randn(3, 7, 4)
    padding = torch.tensor([[False] * 5 + [True] * 2] * 3)
    if not batch_first:
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
    for more in ({}, {"key_padding_mask": padding}, {"attn_mask": torch.randn(5, 7)},
                 {"average_attn_weights": False}, {"need_weights": False}):  # fmt: skip
        for ours, theirs in zip(baked(q, k, v, **more), whole(q, k, v, **more), strict=True):
            if theirs is not None:
                torch.testing.assert_close(ours, theirs)
    single = [x[0] if batch_first else x[:, 0] for x in (q, k, v)]
    torch.testing.assert_close(baked(*single), whole(*single))


def test_baked_attention_refuses_a_mask_for_every_head():
    baked, x = dafp.bake(nn.MultiheadAttention(8, 2)), torch.randn(5, 3, 8)
    with pytest.raises(ValueError, match="same for all heads"):
        baked(x, x, x, attn_mask=torch.zeros(6, 5, 5))


def test_heads_and_stream_of_torchs_encoder_can_be_pruned_after_baking():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 12, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    model, x = nn.Sequential(nn.Linear(6, 8), encoder, nn.Linear(8, 3)).eval(), torch.randn(2, 5, 6)
    baked = dafp.bake(model, x)
    graph = dafp.trace(baked, x, residual="couple")
    assert graph.filters == 8 + 2 * (2 + 12)
    small = dafp.slim(baked, x, ratio=0.5, unit="macs", residual="couple")
    assert dafp.plan_of(small).after.macs < 0.6 * dafp.cost(baked, x).macs
