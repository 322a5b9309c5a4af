"""Tiny networks with attention and norms over channels, as zoo.py lists them."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from dafp.network.plain_attention import plain_attention_of

CLASSES = 5


class FusedQkv(nn.Module):
    """Attention of timm: one layer for queries, keys and values, and counts in attributes."""

    def __init__(self, width: int, heads: int, *, fused: bool = True) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.attn_dim = heads, width // heads, width
        self.fused, self.scale = fused, self.head_dim**-0.5
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def bias(self) -> Tensor | None:
        return None

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias())
        else:
            y = (q * self.scale @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, self.attn_dim))


class WidthOfInput(FusedQkv):
    """The width of the input is taken for that of all heads (DINO, MAE, BEiT, Swin-V2)."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, c // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = (q * self.scale @ k.transpose(-2, -1)).softmax(-1) @ v
        return self.proj(y.transpose(1, 2).reshape(b, n, c))


class PositionTable(FusedQkv):
    """A table with one column per head is added to the attention (Swin)."""

    def __init__(self, width: int, heads: int, tokens: int) -> None:
        super().__init__(width, heads)
        self.table = nn.Parameter(torch.randn(2 * tokens - 1, heads))
        at = torch.arange(tokens)
        self.register_buffer("places", at[:, None] - at + tokens - 1, persistent=False)

    def bias(self) -> Tensor:
        n = self.places.shape[0]
        return self.table[self.places.view(-1)].view(n, n, -1).permute(2, 0, 1)[None]


class JoinedTable(PositionTable):
    """The rows of the table are computed, all but the last ones (BEiT)."""

    def bias(self) -> Tensor:
        n = self.places.shape[0]
        table = torch.cat([2 * self.table[:6], self.table[6:]])
        return table[self.places.view(-1)].view(n, n, -1).permute(2, 0, 1)[None]


class GroupedQuery(nn.Module):
    """Two heads of queries for every head of keys and values, as in language models."""

    def __init__(self, width: int = 8, heads: int = 4, groups: int = 2) -> None:
        super().__init__()
        self.head_dim, self.repeats = width // heads, heads // groups
        self.q, self.proj = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(width, groups * self.head_dim) for _ in range(2))

    def repeat(self, x: Tensor) -> Tensor:
        b, groups, n, dim = x.shape
        x = x[:, :, None].expand(b, groups, self.repeats, n, dim)
        return x.reshape(b, groups * self.repeats, n, dim)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], -1, self.head_dim)
        q, k, v = (layer(x).view(shape).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, self.repeat(k), self.repeat(v))
        return self.proj(y.transpose(1, 2).flatten(2))


class ConvolutionalQkv(nn.Module):
    """One convolution for all three, keys half as wide; values also pass another one (YOLO11)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.num_heads, self.head_dim, self.key_dim = heads, width // heads, width // heads // 2
        self.scale = self.key_dim**-0.5
        self.qkv, self.proj = nn.Conv2d(width, 2 * width, 1), nn.Conv2d(width, width, 1)
        self.positions = nn.Conv2d(width, width, 3, padding=1, groups=width)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        qkv = self.qkv(x).view(b, self.num_heads, self.key_dim * 2 + self.head_dim, h * w)
        q, k, v = qkv.split([self.key_dim, self.key_dim, self.head_dim], dim=2)
        attention = ((q * self.scale).transpose(-2, -1) @ k).softmax(-1)
        y = (v @ attention.transpose(-2, -1)).view(b, c, h, w)
        return self.proj(y + self.positions(v.reshape(b, c, h, w)))


class Patches(nn.Module):
    """Attention between the same pixels of all patches; an image is as many rows as has heads."""

    def __init__(self) -> None:
        super().__init__()
        self.patch_area = 4
        self.stem, self.attention = nn.Conv2d(3, 8, 1), FusedQkv(8, self.patch_area)
        self.head = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        b, c, h, w = x.shape
        n = h * w // self.patch_area
        x = x.reshape(b * c * h, w // self.patch_area, self.patch_area)
        x = x.reshape(b, c, n, self.patch_area).transpose(1, 3)
        x = x.reshape(b * self.patch_area, n, -1)
        x = x + self.attention(x)
        x = x.reshape(b, self.patch_area, n, -1).transpose(1, 3)
        return self.head(x.reshape(b, c, h, w)).mean((2, 3))


class NumberedLayers(nn.Module):
    """Attention among layers that are found by their numbers, which equal widths (YOLO)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.wide_layer, self.save = 2 * width, [0, 2 * width]
        self.attention = ConvolutionalQkv(width, heads)
        between = [nn.SiLU() for _ in range(2 * width - 2)]
        wide, last = nn.Conv2d(width, 6, 1), nn.Conv2d(width + 6, CLASSES, 1)
        self.layers = nn.ModuleList([nn.Conv2d(3, width, 1), self.attention, *between, wide, last])

    def forward(self, x: Tensor) -> Tensor:
        saved: list[Tensor | None] = []
        for number, layer in enumerate(self.layers):
            if number == len(self.layers) - 1:
                x = torch.cat([saved[0], saved[self.wide_layer]], 1)
            y = layer(x)
            x = x + y if number == 1 else y
            saved.append(x if number in self.save else None)
        return x.mean((2, 3))


class ComputedHeads(GroupedQuery):
    """The heads of keys and values, or how often they are repeated, are computed from two counts.

    The dimensions of a head, and the queries for each key, are as many.
    """

    def __init__(self, heads: int = 4, shared: int = 2, *, keys: bool = True) -> None:
        super().__init__(8, heads, heads // shared)
        self.keys, self.num_heads, self.shared = keys, heads, shared
        if not keys:
            self.num_key_heads = heads // shared
        del self.repeats

    def forward(self, x: Tensor) -> Tensor:
        key_heads = self.num_heads // self.shared if self.keys else self.num_key_heads
        repeats = self.shared if self.keys else self.num_heads // self.num_key_heads
        counts = (self.num_heads, key_heads, key_heads)
        q, k, v = (
            layer(x).view(*x.shape[:-1], count, self.head_dim).transpose(1, 2)
            for layer, count in zip((self.q, self.k, self.v), counts, strict=True)
        )
        k, v = (part.repeat_interleave(repeats, 1) for part in (k, v))
        y = F.scaled_dot_product_attention(q, k, v)
        return self.proj(y.transpose(1, 2).flatten(2))


class TalkingHeads(FusedQkv):
    """Linear layers over the heads of the attention, before and after the softmax (CaiT)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(width, heads)
        self.before, self.after = nn.Linear(heads, heads), nn.Linear(heads, heads)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        scores = self.before((q * self.scale @ k.transpose(-2, -1)).permute(0, 2, 3, 1))
        weights = self.after(scores.softmax(-2)).permute(0, 3, 1, 2)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, self.attn_dim))


class NeedsWeights(nn.Module):
    """Attention of torch that also returns its weights, averaged over the heads, baked."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        source = nn.MultiheadAttention(width, 2, batch_first=True)
        self.attention = plain_attention_of(source)

    def forward(self, x: Tensor) -> Tensor:
        y, weights = self.attention(x, x, x, need_weights=True)
        return y * weights.amax(-1, keepdim=True)


class Recurrent(nn.Module):
    """A recurrent layer of torch reads the rows of an image; a linear layer reads its output."""

    def __init__(self, kind: type[nn.RNNBase], layers: int = 1, *, both: bool = False) -> None:
        super().__init__()
        self.embed = nn.Linear(8, 6)
        self.layer = kind(6, 7, layers, batch_first=True, bidirectional=both)
        self.head = nn.Linear(14 if both else 7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(x.mean(1)).relu())[0][:, -1])


class PackedRows(Recurrent):
    """Sequences of unequal length, packed."""

    def forward(self, x: Tensor) -> Tensor:
        x, lengths = self.embed(x.mean(1)).relu(), torch.tensor([8, 5, 5, 4, 2])[: x.shape[0]]
        rows = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        y, _ = nn.utils.rnn.pad_packed_sequence(self.layer(rows)[0], batch_first=True)
        return self.head(y.mean(1))


class Cells(nn.Module):
    """A recurrent cell, called for every row."""

    def __init__(self, kind: type[nn.RNNCellBase]) -> None:
        super().__init__()
        self.embed, self.cell, self.head = nn.Linear(8, 6), kind(6, 7), nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        state = None
        for row in self.embed(x.mean(1)).relu().unbind(1)[:3]:
            state = self.cell(row, state)
        return self.head(state[0] if isinstance(state, tuple) else state)


class RootMeanSquare(nn.Module):
    """RMSNorm as language models write it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.variance_epsilon = nn.Parameter(torch.rand(width) + 0.5), 1e-6

    def forward(self, x: Tensor) -> Tensor:
        x = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * x


class Block(nn.Module):
    def __init__(self, attention: nn.Module, norm: type[nn.Module], width: int = 8) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = norm(width), attention, norm(width)
        self.fc1, self.fc2 = nn.Linear(width, 12), nn.Linear(12, width)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.fc2(F.gelu(self.fc1(self.norm2(x))))


class Transformer(nn.Module):
    """Patches, a class token, positions, one block: a vision transformer on 8×8 images.

    More tokens than one are called registers (DINO).
    """

    def __init__(
        self, attention: nn.Module, norm: type[nn.Module] = nn.LayerNorm, tokens: int = 1
    ) -> None:
        super().__init__()
        self.embed = nn.Conv2d(3, 8, 4, 4)
        self.token = nn.Parameter(torch.randn(1, tokens, 8))
        self.position = nn.Parameter(torch.randn(1, 4 + tokens, 8))
        self.block, self.norm, self.head = Block(attention, norm), norm(8), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.position
        return self.head(self.norm(self.block(x))[:, 0])


class ChannelsFirst(nn.LayerNorm):
    """LayerNorm over axis 1 (ConvNeXt)."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ResponseNorm(nn.Module):
    """The global response norm of ConvNeXt-V2."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 1, 1, width))
        self.bias = nn.Parameter(torch.randn(1, 1, 1, width))

    def forward(self, x: Tensor) -> Tensor:
        length = x.norm(p=2, dim=(1, 2), keepdim=True)
        return self.weight * (x * (length / (length.mean(-1, keepdim=True) + 1e-6))) + self.bias + x


class ConvNeXtV2(nn.Module):
    """Stem, one block and a stage with a channels-first norm before its convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.stem_norm = nn.Conv2d(3, 8, 2, 2), ChannelsFirst(8)
        self.depthwise, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 12), nn.Linear(12, 8)
        self.response = ResponseNorm(12)
        self.down_norm, self.down = ChannelsFirst(8), nn.Conv2d(8, 6, 2, 2)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem_norm(self.stem(x))
        y = F.gelu(self.wide(self.norm(self.depthwise(x).permute(0, 2, 3, 1))))
        x = x + self.narrow(self.response(y)).permute(0, 3, 1, 2)
        return self.head(self.down(self.down_norm(x)).mean((2, 3)))
