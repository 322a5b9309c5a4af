"""Attention and norms over channels: heads and streams, with answers worked out on paper."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dafp
from dafp import PruningPlan
from dafp.errors import TrainingError
from dafp.export.onnx_file import to_onnx
from support import zoo
from support.attention_nets import (
    Block,
    ComputedHeads,
    ConvolutionalQkv,
    FusedQkv,
    GroupedQuery,
    NumberedLayers,
    PackedRows,
    PositionTable,
)


def weighed(layer: nn.Module, weight: Any, bias: Any = None) -> nn.Module:
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(weight, dtype=torch.float).view_as(layer.weight))
        if layer.bias is not None:
            layer.bias.copy_(torch.tensor(bias or [0.0] * len(layer.bias)))
    return layer


class TwoHeads(nn.Module):
    """Two tokens (1, 0) and (0, 1), two heads of one dimension, an output of one number.

    Head 0: queries 1 and 0, keys 0 and ln 3, values 4 and 8. The first token attends with weights
    1/4 and 3/4, which makes 7, the second with 1/2 and 1/2, which makes 6. Head 1: queries 0, so
    that both tokens get the mean of the values 2 and 6, which is 4.
    """

    def __init__(self) -> None:
        super().__init__()
        self.attention = FusedQkv(2, 2)
        queries, keys = [[1, 0], [0, 0]], [[0, math.log(3)], [5, 7]]
        weighed(self.attention.qkv, [*queries, *keys, [4, 8], [2, 6]])
        self.attention.proj = weighed(nn.Linear(2, 1), [[1, 10]])

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x).flatten(1)


@pytest.mark.parametrize(
    ("kept", "expected"), [((0, 1), [47, 46]), ((0,), [7, 6]), ((1,), [40, 40])]
)
def test_two_heads_by_hand(kept, expected):
    model, tokens = TwoHeads().eval(), torch.eye(2)[None]
    graph = dafp.trace(model, tokens)
    assert [(group.name, group.size) for group in graph.groups] == [("attention.qkv", 2)]
    small = dafp.prune(model, graph, PruningPlan({"attention.qkv": kept}))
    torch.testing.assert_close(small(tokens), torch.tensor([expected], dtype=torch.float))
    assert small.attention.num_heads == len(kept)
    assert small.attention.qkv.weight.shape == (3 * len(kept), 2)
    assert small.attention.proj.weight.shape == (1, len(kept))
    assert dafp.cost(small, tokens) == dafp.plan_of(small).after


def test_a_head_is_a_channel_of_queries_keys_values_and_projection():
    model = FusedQkv(8, 2)
    graph = dafp.trace(nn.Sequential(model, nn.Linear(8, 3)), torch.randn(2, 5, 8))
    (group,) = (group for group in graph.groups if group.name == "0.qkv")
    (made,), (consumed,) = group.producers, group.consumers
    first = torch.tensor(made.index).view(2, -1)[0]
    assert first.tolist() == [*range(4), *range(8, 12), *range(16, 20)]
    assert (consumed.param, consumed.index) == ("0.proj.weight", tuple(range(8)))


class LayerNormStream(nn.Module):
    """The stream (1, 3, 5, 100) is normalised, scaled by 1 to 4, shifted by 10 to 40, summed.

    Without its last channel it has mean 3 and variance 8/3: 1, 3, 5 become −√1.5, 0, √1.5, and the
    sum is 10 − √1.5 + 20 + 30 + 3·√1.5.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = weighed(nn.Linear(1, 4), [1, 3, 5, 50]), nn.Linear(1, 4, bias=False)
        weighed(self.b, [0, 0, 0, 50])
        self.norm = weighed(nn.LayerNorm(4, eps=1e-30), [1, 2, 3, 4], [10, 20, 30, 40])
        self.sum = weighed(nn.Linear(4, 1), [1, 1, 1, 1])

    def forward(self, x: Tensor) -> Tensor:
        return self.sum(self.norm(self.a(x) + self.b(x)))


def test_a_layer_norm_stream_by_hand():
    model, x = LayerNormStream().eval(), torch.ones(1, 1)
    graph = dafp.trace(model, x, residual="couple")
    assert [(group.name, group.size) for group in graph.groups] == [("a", 4)]
    assert "statistics of norm" in graph.explain("a")
    plan = PruningPlan({"a": (0, 1, 2)})
    small, expected = dafp.prune(model, graph, plan), torch.tensor([[60 + math.sqrt(6)]])
    torch.testing.assert_close(small(x), expected)
    torch.testing.assert_close(dafp.mask(model, graph, plan)(x), expected)
    assert small.norm.normalized_shape == (3,)
    assert small.a.weight.shape == small.b.weight.shape == (3, 1)


def test_with_keep_a_layer_norm_keeps_its_stream():
    graph = dafp.trace(LayerNormStream(), torch.ones(1, 1))
    assert not graph.groups
    assert {kept.reason for kept in graph.kept if kept.name == "a"} == {
        "normalises over the channels"
    }


NORMED = (
    "transformer",
    "width of the input",
    "position table",
    "joined table",
    "registers",
    "grouped query",
    "RMSNorm",
    "ConvNeXt-V2",
    "LayerNorm",
)


@pytest.mark.parametrize("name", NORMED)
def test_pruned_and_masked_networks_agree_on_other_batches_and_in_train_mode(name):
    net = zoo.BY_NAME[name]
    model = net.model()
    graph = dafp.trace(model, net.example(), residual="couple")
    plan = PruningPlan({group.name: tuple(range(0, group.size, 2)) for group in graph.groups})
    small, masked = dafp.prune(model, graph, plan), dafp.mask(model, graph, plan)
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
    for rows in (1, 5):
        x = torch.randn(rows, 3, 8, 8)
        torch.testing.assert_close(small.eval()(x), masked.eval()(x))
        torch.testing.assert_close(small.train()(x), masked.train()(x))


@pytest.mark.parametrize("name", ["transformer", "RMSNorm"])
def test_a_masked_norm_gives_the_gradients_of_the_pruned_one(name):
    net = zoo.BY_NAME[name]
    model, x = net.model().double(), net.example().double()
    graph = dafp.trace(model, x, residual="couple")
    plan = PruningPlan({"embed": (0, 2, 3, 6)})
    small, masked = dafp.prune(model, graph, plan), dafp.mask(model, graph, plan)
    for network in (small, masked):
        network(x).square().sum().backward()
    for left, right in ((masked.norm, small.norm), (masked.embed, small.embed)):
        torch.testing.assert_close(left.weight.grad[[0, 2, 3, 6]], right.weight.grad)


def test_query_heads_go_with_the_keys_and_values_they_share():
    model = nn.Sequential(GroupedQuery(8, heads=4, groups=2), nn.Linear(8, 3)).eval()
    graph = dafp.trace(model, torch.randn(2, 5, 8))
    small = dafp.prune(model, graph, PruningPlan({"0.q": (1,)}))
    assert small[0].q.weight.shape == (4, 8)
    assert small[0].k.weight.shape == small[0].v.weight.shape == (2, 8)
    torch.testing.assert_close(small[0].q.weight, model[0].q.weight[4:])


@pytest.mark.parametrize("keys", [True, False])
def test_counts_that_are_computed_from_two_attributes_follow(keys):
    """`heads // shared` heads of keys, or `heads // key_heads` repeats, where many are equal."""
    model = nn.Sequential(ComputedHeads(keys=keys), nn.Linear(8, 3)).eval()
    graph = dafp.trace(model, torch.randn(2, 5, 8))
    assert graph["0.q"].size == 2
    small = dafp.prune(model, graph, PruningPlan({"0.q": (1,)}))[0]
    assert (small.num_heads, small.shared, small.head_dim) == (2, 2, 2)
    assert keys or small.num_key_heads == 1
    assert small.k.weight.shape == small.v.weight.shape == (2, 8)


def test_the_table_of_positions_loses_the_columns_of_the_heads():
    model = nn.Sequential(PositionTable(8, 2, tokens=5), nn.Linear(8, 3)).eval()
    graph = dafp.trace(model, torch.randn(2, 5, 8))
    small = dafp.prune(model, graph, PruningPlan({"0.qkv": (1,)}))
    torch.testing.assert_close(small[0].table, model[0].table[:, 1:])


class ShapedTable(nn.Module):
    """A table that knows the shape of its bias; attention calls its method (MaxViT, CoAtNet)."""

    def __init__(self, heads: int, tokens: int) -> None:
        super().__init__()
        self.table = PositionTable(heads, heads, tokens)
        self.bias_shape = (tokens, tokens, heads)

    def get_bias(self) -> Tensor:
        rows = self.table.table[self.table.places.view(-1)]
        return rows.view(self.bias_shape).permute(2, 0, 1)[None]


class AsksTable(FusedQkv):
    def __init__(self) -> None:
        super().__init__(8, 2)
        self.positions = ShapedTable(2, tokens=5)

    def bias(self) -> Tensor:
        return self.positions.get_bias()


def test_a_head_count_in_the_shape_of_a_table_follows():
    model = nn.Sequential(AsksTable(), nn.Linear(8, 3)).eval()
    graph = dafp.trace(model, torch.randn(2, 5, 8))
    small = dafp.prune(model, graph, PruningPlan({"0.qkv": (1,)}))
    assert small[0].positions.bias_shape == (5, 5, 1)
    assert small[0].num_heads == 1


def test_stream_and_heads_are_equally_wide_where_the_forward_takes_one_for_the_other():
    net = zoo.BY_NAME["width of the input"]
    model = net.model().eval()
    graph = dafp.trace(model, net.example(), residual="couple")
    small = dafp.prune(model, graph, PruningPlan({"embed": (0, 1), "block.attention.qkv": (1,)}))
    assert small.embed.out_channels == small.block.attention.proj.in_features == 4
    assert small.block.attention.num_heads == 1
    assert "block.attention.qkv" in {kept.name for kept in dafp.trace(model, net.example()).kept}


class ReadsConfig(FusedQkv):
    """The head count is read from an object that many layers share."""

    def __init__(self) -> None:
        super().__init__(8, 2)
        self.config = SimpleNamespace(heads=2)

    def forward(self, x: Tensor) -> Tensor:
        self.num_heads = self.config.heads
        return super().forward(x)


def test_a_head_count_in_a_shared_config_keeps_the_heads():
    model = nn.Sequential(nn.Linear(8, 8), ReadsConfig(), nn.Linear(8, 3)).eval()
    graph = dafp.trace(model, torch.randn(2, 5, 8), residual="couple")
    reasons = {kept.name: kept.reason for kept in graph.kept}
    assert reasons["1.qkv"] == "the forward contains this width as a number"
    plan = PruningPlan({group.name: (0, 2) for group in graph.groups})
    small = dafp.prune(model, graph, plan)
    assert small[0].out_features == 2
    assert model[1].config.heads == 2


def test_an_attribute_that_equals_a_width_by_chance_stays_as_it_is():
    """The number of a layer equals the rows of the one head: it was taken for their count."""
    model, x = NumberedLayers(4, heads=1).eval(), torch.randn(2, 3, 4, 4)
    graph = dafp.trace(model, x, residual="couple")
    keep = {"attention.qkv[4:8]": (0, 3), "attention.proj": (1, 2), "layers.8": (0, 5)}
    small = dafp.prune(model, graph, PruningPlan(keep))
    reasons = {kept.name: kept.reason for kept in graph.kept}
    assert reasons["attention.qkv[0:4]"].endswith("only whole heads can be removed")
    assert (small.save, small.wide_layer) == ([0, 8], 8)
    assert (small.attention.key_dim, small.attention.head_dim) == (2, 2)
    assert small.attention.scale == model.attention.scale
    assert small.attention.qkv.weight.shape == (6, 2, 1, 1)


class Listed(nn.Sequential):
    """A list that nothing reads holds the rows of the one head."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(3, 4, 1), ConvolutionalQkv(4, 1), nn.Conv2d(4, 5, 1))
        self.strides = [8]


def test_lists_of_modules_around_attention_are_no_shapes_of_it():
    model = Listed().eval()
    graph = dafp.trace(model, torch.randn(2, 3, 4, 4), residual="couple")
    small = dafp.prune(model, graph, PruningPlan({"0": (0, 1), "1.qkv[4:8]": (1, 3)}))
    assert small.strides == [8]
    assert small[1].qkv.weight.shape == (6, 2, 1, 1)


@pytest.mark.parametrize(("width", "heads"), [(8, 2), (16, 4)])
def test_heads_are_told_from_their_dimensions_where_both_are_as_many(width, heads):
    """Two heads have keys of two dimensions here, four heads four dimensions each."""
    model, x = NumberedLayers(width, heads).eval(), torch.randn(2, 3, 4, 4)
    graph = dafp.trace(model, x, residual="couple")
    assert graph["attention.qkv"].size == heads
    plan = PruningPlan({"attention.qkv": (1,), "attention.proj": (0, 1, 2, 3)})
    small = dafp.prune(model, graph, plan)
    assert small.attention.num_heads == 1
    assert small.attention.key_dim == model.attention.key_dim
    assert small.attention.proj.weight.shape == (4, 4, 1, 1)


class ManyLayers(nn.Module):
    """Twelve layers of attention. The number of colours equals that of the heads."""

    def __init__(self) -> None:
        super().__init__()
        self.colours = 2
        self.layers = nn.ModuleList(FusedQkv(4, 2) for _ in range(12))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def test_attributes_are_found_at_once_in_all_layers_of_a_class():
    graph = dafp.trace(ManyLayers(), torch.randn(2, 5, 4), residual="couple")
    assert [group.size for group in graph.groups if group.name.endswith("qkv")] == [2] * 12


@pytest.mark.parametrize("name", ["LSTM", "GRU"])
def test_hidden_units_of_recurrent_layers_are_kept_and_their_input_is_not(name):
    net = zoo.BY_NAME[name]
    model = net.model().eval()
    graph = dafp.trace(model, net.example())
    assert graph.explain("layer").partition(": ")[2].startswith("its hidden units stay: torch's")
    small = dafp.prune(model, graph, PruningPlan({"embed": (0, 4)}))
    assert small.layer.input_size == 2
    assert small.layer.weight_ih_l0.shape == (model.layer.weight_ih_l0.shape[0], 2)
    assert dafp.cost(small, net.example()) == dafp.plan_of(small).after


def test_a_packed_sequence_is_kept_and_its_multiply_adds_are_counted():
    model, x = PackedRows(nn.LSTM).eval(), torch.randn(2, 3, 8, 8)
    graph = dafp.trace(model, x)
    assert not graph.groups
    assert {kept.name for kept in graph.kept} == {"embed", "layer", "head"}
    assert graph.whole == dafp.cost(model, x)


def test_hidden_units_of_a_cell_go_with_all_their_gates():
    net = zoo.BY_NAME["LSTM cell"]
    model = net.model().eval()
    graph = dafp.trace(model, net.example(), residual="couple")
    small = dafp.prune(model, graph, PruningPlan({"cell": (1, 3)}))
    rows = [1, 3, 8, 10, 15, 17, 22, 24]
    torch.testing.assert_close(small.cell.weight_hh, model.cell.weight_hh[rows][:, [1, 3]])
    assert (small.cell.hidden_size, small.head.in_features) == (2, 2)


def test_heads_whose_weights_are_averaged_are_kept_and_the_reason_says_what_to_do():
    net = zoo.BY_NAME["weights of attention"]
    reasons = {kept.name: kept.reason for kept in dafp.trace(net.model(), net.example()).kept}
    assert reasons["block.attention.attention.q_proj"].endswith(
        "averaged over its heads: call it with need_weights=False if nothing uses them"
    )


def test_heads_between_layers_over_heads_can_go():
    net = zoo.BY_NAME["talking heads"]
    model = net.model().eval()
    graph = dafp.trace(model, net.example())
    small = dafp.prune(model, graph, PruningPlan({"block.attention.before": (1,)}))
    attention = small.block.attention
    assert (attention.before.out_features, attention.after.in_features) == (1, 1)
    assert (attention.before.in_features, attention.num_heads) == (2, 2)


class WrongCount(FusedQkv):
    """`attn_dim`, by which the heads are merged, is a number in the forward."""

    def forward(self, x: Tensor) -> Tensor:
        self.attn_dim = 8
        return super().forward(x)


def test_heads_whose_count_is_not_an_attribute_are_kept_with_a_reason():
    model = nn.Sequential(nn.Linear(8, 8), WrongCount(8, 2), nn.Linear(8, 3))
    graph = dafp.trace(model, torch.randn(2, 5, 8), residual="couple")
    reasons = {kept.name: kept.reason for kept in graph.kept}
    assert reasons["1.qkv"] == "the forward contains this width as a number"
    assert {group.name for group in graph.groups} == {"0", "1.proj"}


class Text(nn.Module):
    """Words and places are looked up in tables; some words are masked."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(6, 8)
        self.block, self.head = Block(FusedQkv(8, 2), nn.LayerNorm), nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places(torch.arange(words.shape[1]))
        return self.head(self.block(x).mean(1))


def test_embeddings_produce_the_channels_of_a_stream():
    model, words = Text().eval(), torch.arange(6)[None]
    graph = dafp.trace(model, words, residual="couple")
    produced = {(slot.param, slot.dim) for slot in graph["words"].producers}
    assert {("words.weight", 1), ("places.weight", 1), ("block.fc2.weight", 0)} <= produced
    small = dafp.prune(model, graph, PruningPlan({"words": (0, 1, 4, 6)}))
    assert small.words.weight.shape == (11, 4)
    assert small.words.embedding_dim == 4
    masked = dafp.mask(model, graph, PruningPlan({"words": (0, 1, 4, 6)}))
    other = torch.randint(0, 11, (7, 6))
    torch.testing.assert_close(small(other), masked(other))


class Rotary(GroupedQuery):
    """Queries and keys are rotated by angles that all heads share."""

    def __init__(self) -> None:
        super().__init__(8, heads=4, groups=2)
        self.register_buffer("speeds", torch.tensor([0.7, 0.3]))

    def repeat(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[2])[:, None] * self.speeds
        left, right = x.chunk(2, -1)
        x = x * angles.cos() + torch.cat([-right, left], -1) * angles.sin()
        return super().repeat(x)


def test_whole_heads_go_where_positions_rotate_their_dimensions():
    model = nn.Sequential(Rotary(), nn.Linear(8, 3)).eval()
    graph = dafp.trace(model, torch.randn(2, 5, 8))
    assert graph["0.q"].size == 2
    small = dafp.prune(model, graph, PruningPlan({"0.q": (1,)}))
    assert small[0].k.weight.shape == (2, 8)
    torch.testing.assert_close(small[0].speeds, model[0].speeds)


class ShiftedMask(PositionTable):
    """A mask that is filled region by region, for shifted windows, is added to the table."""

    def bias(self) -> Tensor:
        regions = torch.zeros(1, 5, 1)
        for number, part in enumerate((slice(0, 3), slice(3, 5))):
            regions[:, part] = number
        regions = regions.flatten(1)
        mask = (regions[:, None] - regions[:, :, None]) * 100.0
        return super().bias() + mask[:, None]


def test_a_mask_of_positions_keeps_no_channels():
    model = nn.Sequential(nn.Linear(8, 8), ShiftedMask(8, 2, tokens=5), nn.Linear(8, 3)).eval()
    graph = dafp.trace(model, torch.randn(2, 5, 8))
    assert {group.name: group.size for group in graph.groups} == {"0": 8, "1.qkv": 2, "1.proj": 8}
    plan = PruningPlan({"0": (0, 1, 4), "1.qkv": (1,), "1.proj": (2, 3)})
    small, masked = dafp.prune(model, graph, plan), dafp.mask(model, graph, plan)
    x = torch.randn(3, 5, 8)
    torch.testing.assert_close(small(x), masked(x))


def test_rebuilding_the_consumers_of_a_stream_reduces_the_error():
    net = zoo.BY_NAME["transformer"]
    model, batches = net.model().eval(), [net.example(seed) for seed in range(8)]
    graph = dafp.trace(model, batches[0], residual="couple")
    plan = PruningPlan({"embed": (0, 2, 3, 5, 6, 7), "block.fc1": tuple(range(8))})
    rebuilt = dafp.reconstruct(model, graph, plan, batches)
    small, plain = dafp.prune(rebuilt, graph, plan), dafp.prune(model, graph, plan)
    assert small.embed.out_channels == 6
    x = torch.cat(batches)
    torch.testing.assert_close(rebuilt(x), small(x))
    errors = [(network(x) - model(x)).square().mean() for network in (small, plain)]
    assert errors[0] < 0.5 * errors[1]


def test_sparse_training_refuses_a_network_whose_scales_are_layer_norms():
    net = zoo.BY_NAME["transformer"]
    model = net.model()
    graph = dafp.trace(model, net.example(), residual="couple")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(TrainingError, match=r"statistics of a LayerNorm.*dafp\.slim prunes"):
        dafp.SparseTraining(model, graph, optimizer)


@pytest.mark.parametrize("name", ["transformer", "position table", "RMSNorm", "ConvNeXt-V2"])
def test_pruned_attention_is_exported_to_onnx(name, tmp_path):
    net = zoo.BY_NAME[name]
    model = net.model().eval()
    small = dafp.slim(model, net.example(), ratio=0.4, unit="macs", residual="couple")
    exported = to_onnx(small, net.example(), tmp_path / "small.onnx")
    assert exported.path.stat().st_size > 0
    assert dafp.plan_of(small).after.macs < 0.65 * dafp.cost(model, net.example()).macs
