"""Attention with a head count of its own, in place of nn.MultiheadAttention.

nn.MultiheadAttention takes the width of its input for that of all its heads, so none can go.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

_INPUTS = ("q", "k", "v")


class PlainAttention(nn.Module):
    """Multi-head attention with the arguments of nn.MultiheadAttention, made from one.

    `num_heads` counts its heads; linear layers hold the weights. `dafp.bake` puts it in place of
    nn.MultiheadAttention, whose heads cannot be pruned.
    """

    in_proj_weight = in_proj_bias = None  # what torch's transformer layers look at
    _qkv_same_embed_dim = False

    def __init__(self, source: nn.MultiheadAttention) -> None:
        super().__init__()
        self.num_heads, self.head_dim = source.num_heads, source.head_dim
        self.dropout, self.batch_first = source.dropout, source.batch_first
        self.training = source.training
        for name, weight, bias in _projections(source):
            self.add_module(f"{name}_proj", _linear(weight, bias))
        self.out_proj = _linear(source.out_proj.weight, source.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """As nn.MultiheadAttention; `attn_mask` has to be the same for all heads."""
        rows = 0 if self.batch_first or query.dim() == 2 else 1
        batched = query.dim() == 3
        q, k, v = (x.transpose(0, rows) if batched else x[None] for x in (query, key, value))
        q, k, v = self._heads("q", q), self._heads("k", k), self._heads("v", v)
        mask = _mask(attn_mask, key_padding_mask, q)
        weights = None
        if need_weights:
            scores = q @ k.transpose(-2, -1) * self.head_dim**-0.5
            scores = (scores if mask is None else scores + mask).softmax(-1)
            scores = torch.dropout(scores, self.dropout, self.training)
            y = scores @ v
            weights = scores.mean(1) if average_attn_weights else scores
            weights = weights if batched else weights[0]
        else:
            drop = self.dropout if self.training else 0.0
            y = scaled_dot_product_attention(q, k, v, mask, drop)
        y = self.out_proj(y.transpose(1, 2).flatten(2))
        return (y.transpose(0, rows) if batched else y[0]), weights

    def _heads(self, name: str, x: Tensor) -> Tensor:
        x = self.get_submodule(f"{name}_proj")(x)
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)


def plain_attention_of(module: nn.Module) -> PlainAttention | None:
    """The same attention with a head count of its own; None for all other modules."""
    if type(module) is not nn.MultiheadAttention:
        return None
    if module.bias_k is not None or module.bias_v is not None or module.add_zero_attn:
        return None
    return PlainAttention(module)


def _projections(source: Any) -> list[tuple[str, Tensor, Tensor | None]]:
    weights = [getattr(source, f"{name}_proj_weight") for name in _INPUTS]
    if source.in_proj_weight is not None:
        weights = source.in_proj_weight.chunk(3)
    biases = [None] * 3 if source.in_proj_bias is None else source.in_proj_bias.chunk(3)
    return list(zip(_INPUTS, weights, biases, strict=True))


def _linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    made, wide = weight.shape
    layer = nn.Linear(wide, made, bias is not None, device="meta")  # no weights are drawn
    layer.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)
    if bias is not None:
        layer.bias = nn.Parameter(bias.detach().clone(), requires_grad=bias.requires_grad)
    return layer


def _mask(mask: Tensor | None, padding: Tensor | None, q: Tensor) -> Tensor | None:
    """One mask that is added to the scores; True stands for a place that is not attended."""
    parts = []
    if mask is not None:
        if mask.dim() == 3:
            raise ValueError(
                "an attn_mask of three axes has one part for every head; give one of two axes, "
                "(queries, keys), which is the same for all heads"
            )
        parts.append(_added(mask, q))
    if padding is not None:
        parts.append(_added(padding, q)[..., None, None, :])
    return None if not parts else parts[0] if len(parts) == 1 else parts[0] + parts[1]


def _added(mask: Tensor, q: Tensor) -> Tensor:
    if mask.dtype is not torch.bool:
        return mask.to(q.dtype)
    return torch.zeros_like(mask, dtype=q.dtype).masked_fill(mask, float("-inf"))
