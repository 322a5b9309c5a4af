"""Attention with odd attributes and inputs: masks, caches, head counts that are wrong."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import dafp
from dafp import PruningPlan
from dafp.errors import TraceError
from support.attention_nets import FusedQkv


class Decoder(nn.Module):
    """Attention with a mask, and with keys and values of earlier tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.proj, self.head = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.num_heads, self.head_dim = 4, 2

    def heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def forward(self, x: Tensor, mask: Tensor | None = None, past: object = None) -> object:
        x = self.embed(x)
        q, k, v = (self.heads(layer(x)) for layer in (self.q, self.k, self.v))
        if past is not None:
            k, v = (torch.cat([old, new], 2) for old, new in zip(past, (k, v), strict=True))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        y = self.head(self.proj(y.transpose(1, 2).flatten(2)))
        return y if past is None else (y, k, v)


@pytest.mark.parametrize("truth", [True, False])
def test_a_mask_that_all_heads_share_lets_heads_go(truth):
    model, mask = Decoder().eval(), torch.randn(2, 1, 5, 5)
    example = {"x": torch.randn(2, 5, 8), "mask": mask > -1 if truth else mask}
    graph = dafp.trace(model, example)
    small = dafp.prune(model, graph, PruningPlan({"q": (0, 3), "proj": (1, 2, 4)}))
    masked = dafp.mask(model, graph, PruningPlan({"q": (0, 3), "proj": (1, 2, 4)}))
    assert (small.num_heads, small.v.out_features, small.proj.weight.shape) == (2, 4, (3, 4))
    other = {"x": torch.randn(3, 5, 8), "mask": example["mask"][:1]}
    torch.testing.assert_close(small(**other), masked(**other))


@pytest.mark.parametrize(
    "example",
    [
        {"mask": torch.randn(2, 4, 5, 5)},
        {"mask": torch.randn(2, 4, 5, 5) > -1},
        {"past": (torch.randn(2, 4, 3, 2), torch.randn(2, 4, 3, 2))},
    ],
    ids=["mask", "mask of truth values", "cache"],
)
def test_a_mask_or_a_cache_with_an_entry_per_head_keeps_the_heads_with_the_reason(example):
    model = Decoder().eval()
    graph = dafp.trace(model, {"x": torch.randn(2, 5, 8), **example})
    assert [group.name for group in graph.groups] == ["embed", "proj"]
    reasons = {kept.name: kept.reason for kept in graph.kept}
    assert {reasons[name] for name in "qkv"} == {"combined with channels that no layer produces"}
    small = dafp.prune(model, graph, PruningPlan({"embed": (0, 1), "proj": (2, 3)}))
    assert (small.q.weight.shape, small.proj.out_features) == ((8, 2), 2)


class GivenKeys(Decoder):
    def forward(self, x: Tensor, keys: Tensor) -> Tensor:
        q, v = (self.heads(layer(self.embed(x))) for layer in (self.q, self.v))
        y = (q @ keys.transpose(-2, -1)).softmax(-1) @ v
        return self.head(self.proj(y.transpose(1, 2).flatten(2)))


def test_keys_of_heads_that_are_an_input_keep_the_heads_with_the_reason():
    model, example = GivenKeys().eval(), (torch.randn(2, 5, 8), torch.randn(2, 4, 5, 2))
    graph = dafp.trace(model, example)
    reasons = {kept.name: kept.reason for kept in graph.kept}
    assert reasons["q"] == reasons["v"] == "combined with channels that no layer produces"
    assert [group.name for group in graph.groups] == ["embed", "proj"]


class WrongHeads(FusedQkv):
    def __init__(self) -> None:
        super().__init__(8, 2)
        self.num_heads = 3


def test_a_head_count_that_does_not_divide_the_weights_is_reported_as_the_forward_reports_it():
    with pytest.raises(TraceError, match=r"does not run on .*shape '\[2, 5, 3, 3, 4\]'"):
        dafp.trace(nn.Sequential(WrongHeads(), nn.Linear(8, 3)), torch.randn(2, 5, 8))


class UnusedCount(WrongHeads):
    """The count of the weights decides, not the attribute."""

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).view(*x.shape[:2], 3, -1, self.head_dim).permute(2, 0, 3, 1, 4)
        return self.proj(F.scaled_dot_product_attention(*qkv).transpose(1, 2).flatten(2))


def test_a_head_count_that_nothing_uses_stays_as_it_is():
    model = nn.Sequential(UnusedCount(), nn.Linear(8, 3)).eval()
    graph = dafp.trace(model, torch.randn(2, 5, 8))
    small = dafp.prune(model, graph, PruningPlan({"0.qkv": (1,)}))
    assert small[0].num_heads == 3
    assert small[0].qkv.weight.shape == (12, 8)
    assert small[0].proj.weight.shape == (8, 4)
