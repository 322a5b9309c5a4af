"""Random networks: a recipe of blocks, drawn by Hypothesis, becomes a module.

Every block is one of the pieces that people build networks from. A block gets C channels and gives
some number of channels; nothing in a recipe knows what comes before or after it.
"""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from support.attention_nets import ChannelsFirst, ResponseNorm, RootMeanSquare

WIDTHS = (4, 6, 8, 12)


@dataclass(frozen=True)
class Block:
    kind: str
    width: int
    groups: int
    twist: int  # which activation, kernel or variant


def recipes() -> st.SearchStrategy[tuple[Block, ...]]:
    block = st.builds(
        Block,
        kind=st.sampled_from(sorted(PIECES)),
        width=st.sampled_from(WIDTHS),
        groups=st.sampled_from((1, 2)),
        twist=st.integers(0, 3),
    )
    return st.lists(block, min_size=1, max_size=6).map(tuple)


class Net(nn.Module):
    """Stem, the drawn blocks, and one of four heads; the last one is that of a detector."""

    def __init__(self, recipe: tuple[Block, ...], head: int) -> None:
        super().__init__()
        self.stem = conv_bn(3, 8)
        blocks, channels = [], 8
        for block in recipe:
            blocks.append(PIECES[block.kind](channels, block))
            channels = blocks[-1].out
        self.blocks = nn.ModuleList(blocks)
        self.head, self.classes = head, 5
        self.last = nn.Conv2d(channels, 5, 1) if head == 2 else None
        self.boxes = Boxes(channels) if head == 3 else None
        features = channels * 4 if head == 1 else channels
        self.fc = nn.Linear(features, 5) if head < 2 else None

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, ...]:
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        if self.boxes is not None:
            return self.boxes(x)
        if self.last is not None:
            return self.last(x).mean((2, 3))
        size = 2 if self.head == 1 else 1
        return self.fc(functional.adaptive_avg_pool2d(x, size).flatten(1))


class Boxes(nn.Module):
    """Two branches; the best boxes are chosen by order and a threshold."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.tower = conv_bn(channels, 8)
        self.scores, self.corners = nn.Conv2d(8, 2 * 3, 1), nn.Conv2d(8, 2 * 4, 3, padding=1)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = torch.relu(self.tower(x))
        scores, corners = flat(self.scores(x), 3).sigmoid(), flat(self.corners(x), 4)
        best, order = scores.amax(2).topk(4, 1)
        first, place = torch.where(best > 0.4)
        return scores, corners, order, corners[first, order[first, place]]


def flat(x: Tensor, size: int) -> Tensor:
    """(N, A·size, H, W) → (N, H·W·A, size)."""
    rows, _, height, width = x.shape
    x = x.view(rows, -1, size, height, width).permute(0, 3, 4, 1, 2)
    return x.reshape(rows, -1, size)


def build(recipe: tuple[Block, ...], head: int) -> nn.Module:
    """The network with random weights, γ, β and statistics, all from seed 0."""
    torch.manual_seed(0)
    model = Net(recipe, head).eval()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.GroupNorm)):
            nn.init.uniform_(module.weight, 0.3, 1.7)
            nn.init.normal_(module.bias, std=0.5)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.running_mean, std=0.3)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model


def conv_bn(channels: int, width: int, kernel: int = 3, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(channels, width, kernel, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(width))


def activation(twist: int, width: int) -> nn.Module:
    return (nn.ReLU(), nn.SiLU(), nn.PReLU(width), nn.Hardswish())[twist]


class Plain(nn.Module):
    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        groups = block.groups if channels % 2 == 0 else 1
        self.body = conv_bn(channels, block.width, groups=groups)
        self.act, self.out = activation(block.twist, block.width), block.width

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.body(x))


class Depthwise(nn.Module):
    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        times = 1 + block.twist % 2
        self.filter = conv_bn(channels, channels * times, groups=channels)
        self.point = conv_bn(channels * times, block.width, 1)
        self.out = block.width

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.point(torch.relu(self.filter(x))))


class Residual(nn.Module):
    """Post-activation; identity, projection, or a block that is read twice."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        self.out = channels if block.twist < 2 else block.width
        self.one, self.two = conv_bn(channels, block.width), conv_bn(block.width, self.out)
        self.skip = nn.Identity() if self.out == channels else conv_bn(channels, self.out, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.two(torch.relu(self.one(x))) + self.skip(x))


class PreActivation(nn.Module):
    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(block.width)
        self.conv1 = nn.Conv2d(channels, block.width, 1, bias=False)
        self.conv2 = nn.Conv2d(block.width, channels, 3, padding=1, bias=False)
        self.out = channels

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(torch.relu(self.bn1(x)))
        return x + self.conv2(torch.relu(self.bn2(inner)))


class Concat(nn.Module):
    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        self.branches = nn.ModuleList(conv_bn(channels, block.width, k) for k in (1, 3))
        self.keep_input = block.twist % 2 == 0
        self.out = 2 * block.width + (channels if self.keep_input else 0)

    def forward(self, x: Tensor) -> Tensor:
        parts = [torch.relu(branch(x)) for branch in self.branches]
        return torch.cat([x, *parts] if self.keep_input else parts, 1)


class Split(nn.Module):
    """By chunk, by an attribute, by a list of sizes, or by slices."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        wide = 2 * block.width
        self.enter, self.way = conv_bn(channels, wide, 1), block.twist
        self.part = block.width if block.twist < 2 else block.width - 2
        self.sizes = [self.part, wide - self.part]
        self.left, self.right = conv_bn(self.part, 4), conv_bn(wide - self.part, 6)
        self.out = 10

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.enter(x))
        if self.way == 0:
            a, b = x.chunk(2, 1)
        elif self.way == 1:
            a, b = x.split(self.part, 1)
        elif self.way == 2:
            a, b = x.split(self.sizes, 1)
        else:
            a, b = x[:, : self.part], x[:, self.part :]
        return torch.relu(torch.cat([self.left(a), self.right(b)], 1))


class Gated(nn.Module):
    """A gated linear unit, or squeeze-and-excite."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        self.glu, self.out = block.twist % 2 == 0, block.width
        self.enter = conv_bn(channels, 2 * block.width if self.glu else block.width)
        if not self.glu:  # layers that are never reached would keep what they may consume
            self.squeeze, self.excite = nn.Conv2d(block.width, 4, 1), nn.Conv2d(4, block.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.enter(x)
        if self.glu:
            a, b = x.chunk(2, 1)
            return a * torch.sigmoid(b)
        gate = torch.relu(self.squeeze(x.mean((2, 3), keepdim=True)))
        return x * torch.sigmoid(self.excite(gate))


class Shuffle(nn.Module):
    """Channel shuffle by hand, or pixels traded for channels and back."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        self.pixels, self.out = block.twist == 3, block.width
        self.enter = conv_bn(channels, 4 * block.width if self.pixels else block.width)
        self.leave = conv_bn(block.width, block.width, groups=block.groups)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.enter(x))
        if self.pixels:
            return functional.avg_pool2d(self.leave(functional.pixel_shuffle(x, 2)), 2)
        rows, channels, height, width = x.shape
        x = x.view(rows, 2, channels // 2, height, width).transpose(1, 2)
        return self.leave(x.reshape(rows, channels, height, width))


class Scaled(nn.Module):
    """Layer scale on a residual branch, and one convolution used twice."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        self.conv = nn.Conv2d(channels, channels, 3, padding=1)
        self.scale = nn.Parameter(torch.randn(channels, 1, 1))
        self.twice, self.out = block.twist % 2 == 0, channels

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv(x))
        if self.twice:
            y = torch.relu(self.conv(y))
        return x + self.scale * y


class Written(nn.Module):
    """Branches written into an empty tensor, part by part."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        self.a, self.b = conv_bn(channels, 4), conv_bn(channels, block.width, 1)
        self.out = 4 + block.width

    def forward(self, x: Tensor) -> Tensor:
        a, b = torch.relu(self.a(x)), torch.relu(self.b(x))
        both = x.new_zeros(x.shape[0], a.shape[1] + b.shape[1], *x.shape[2:])
        both[:, : a.shape[1]] = a
        both[:, a.shape[1] :] = b
        return both


class Transposed(nn.Module):
    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        groups = block.groups if channels % 2 == 0 else 1
        self.up = nn.ConvTranspose2d(channels, block.width, 2, 2, groups=groups)
        self.norm, self.out = nn.BatchNorm2d(block.width), block.width

    def forward(self, x: Tensor) -> Tensor:
        return functional.max_pool2d(torch.relu(self.norm(self.up(x))), 2)


def norm(channels: int, twist: int) -> nn.Module:
    """BatchNorm, or GroupNorm with groups of one, of two, or of half of the channels."""
    if twist == 0:
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm((channels, channels // 2, 2)[twist - 1], channels)


class Normed(nn.Module):
    """Pre-activation with any norm."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        self.norm1, self.conv1 = norm(channels, block.twist), nn.Conv2d(channels, block.width, 1)
        self.norm2 = norm(block.width, block.twist)
        self.conv2 = nn.Conv2d(block.width, channels, 3, padding=1)
        self.out = channels

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(functional.silu(self.norm1(x)))
        return x + self.conv2(functional.silu(self.norm2(inner)))


class Sampled(nn.Module):
    """A residual block of diffusion networks: larger or smaller images between norm and layer."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        self.norm1, self.norm2 = norm(channels, block.twist), norm(block.width, block.twist)
        self.conv1 = nn.Conv2d(channels, block.width, 3, padding=1)
        self.conv2 = nn.Conv2d(block.width, channels, 3, padding=1)
        self.smooth, self.down, self.out = block.groups == 2, block.width > 6, channels

    def change(self, x: Tensor) -> Tensor:
        if self.down:
            return functional.max_pool2d(x, 2) if self.smooth else functional.avg_pool2d(x, 2)
        mode = "bilinear" if self.smooth else "nearest"
        return functional.interpolate(x, scale_factor=2.0, mode=mode)

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(self.change(functional.silu(self.norm1(x))))
        x = self.change(x) + self.conv2(functional.silu(self.norm2(inner)))
        if self.down:
            return functional.interpolate(x, scale_factor=2.0)
        return functional.avg_pool2d(x, 2)


class Attended(nn.Module):
    """Attention over pixels: by hand, by torch, with shared keys, or with dimensions first."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        self.dim, self.way = block.width // 2, block.twist
        self.shared = 2 if self.way == 2 else 1  # heads of queries for one of keys
        self.heads = 2 * block.groups * self.shared
        wide = self.heads * self.dim
        self.q, self.proj = nn.Linear(channels, wide), nn.Linear(wide, channels)
        self.kv, self.out = nn.Linear(channels, 2 * wide // self.shared), channels

    def heads_of(self, x: Tensor, heads: int) -> Tensor:
        if self.way == 3:
            return x.unflatten(-1, (self.dim, heads)).movedim(-1, 1)
        return x.view(*x.shape[:2], heads, self.dim).transpose(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        rows, _, height, width = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        q = self.heads_of(self.q(tokens), self.heads)
        k, v = (
            self.heads_of(part, self.heads // self.shared).repeat_interleave(self.shared, 1)
            for part in self.kv(tokens).chunk(2, -1)
        )
        if self.way == 0:
            y = (q @ k.transpose(-2, -1) / self.dim).softmax(-1) @ v
        else:
            y = functional.scaled_dot_product_attention(q, k, v)
        y = y.movedim(1, -1) if self.way == 3 else y.transpose(1, 2)
        y = self.proj(y.reshape(rows, height * width, -1))
        return x + y.transpose(1, 2).unflatten(2, (height, width))


class NormedOverChannels(nn.Module):
    """LayerNorm on axis 1, GroupNorm with one group, RMSNorm, or the response norm."""

    def __init__(self, channels: int, block: Block) -> None:
        super().__init__()
        kinds = (ChannelsFirst, lambda c: nn.GroupNorm(1, c), RootMeanSquare, ResponseNorm)
        self.norm, self.last = kinds[block.twist](channels), block.twist > 1
        self.conv1 = nn.Conv2d(channels, block.width, 1)
        self.conv2 = nn.Conv2d(block.width, channels, 3, padding=1)
        self.out = channels

    def forward(self, x: Tensor) -> Tensor:
        y = x.permute(0, 2, 3, 1) if self.last else x
        y = self.norm(y)
        y = y.permute(0, 3, 1, 2) if self.last else y
        return x + self.conv2(functional.silu(self.conv1(y)))


PIECES = {
    piece.__name__: piece
    for piece in (Plain, Depthwise, Residual, PreActivation, Concat, Split, Gated, Shuffle,
                  Scaled, Written, Transposed, Normed, Sampled, Attended, NormedOverChannels)
}  # fmt: skip
