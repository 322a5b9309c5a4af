"""Tiny networks, one corner each, that state which share of their filters can be pruned.

`share` is graph.filters / graph.all_filters with residual="keep", `couple` the same with
residual="couple". Both are written as prunable / all: a class of tied filters counts once among
the prunable, a kept filter counts by itself, an output of the network is always kept.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import register_parametrization
from torch.utils._pytree import tree_map

from support.attention_nets import (
    Cells,
    ComputedHeads,
    ConvNeXtV2,
    FusedQkv,
    GroupedQuery,
    JoinedTable,
    NeedsWeights,
    NumberedLayers,
    Patches,
    PositionTable,
    Recurrent,
    RootMeanSquare,
    TalkingHeads,
    Transformer,
    WidthOfInput,
)

torch.set_num_threads(1)

CLASSES = 5  # outputs of every classifier here


@dataclass(frozen=True, eq=False)
class Net:
    """One network, what it takes, and how much of it can be pruned."""

    name: str
    build: Callable[[], nn.Module]
    share: float
    couple: float
    shapes: Any = (2, 3, 8, 8)  # a shape, or a tuple or dict of shapes
    kwargs: Mapping[str, Any] = field(default_factory=dict)  # for trace

    def model(self) -> nn.Module:
        """A fresh instance; the same numbers every time."""
        with torch.random.fork_rng([]):
            torch.manual_seed(zlib.crc32(self.name.encode()))
            model = self.build()
            for module in model.modules():
                _randomise(module)
        return model

    def example(self, seed: int = 0) -> Any:
        """Random input, of another seed if the network has to be tried on something fresh."""
        generator = torch.Generator().manual_seed(seed)
        return tree_map(
            lambda shape: torch.randn(shape, generator=generator),
            self.shapes,
            is_leaf=lambda s: isinstance(s, tuple) and isinstance(s[0], int),
        )


def _randomise(module: nn.Module) -> None:
    """Fresh norms (γ = 1, β = 0) hide bugs."""
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = getattr(module, name, None)
        if not isinstance(tensor, Tensor) or not isinstance(module, _NORMS):
            continue
        with torch.no_grad():
            if name == "weight":
                tensor.uniform_(0.3, 1.7).mul_(torch.randn_like(tensor).sign())
            elif name == "running_var":
                tensor.uniform_(0.5, 1.5)
            else:
                tensor.normal_(0, 0.5)


_NORMS = (nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.LayerNorm)


# ---- parts ---------------------------------------------------------------------------------------


class Do(nn.Module):
    """A function as a layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any) -> Any:
        return self.function(*args)


def conv(width: int, filters: int, kernel: int = 3, **kwargs: Any) -> nn.Conv2d:
    return nn.Conv2d(width, filters, kernel, padding=kernel // 2, **kwargs)


def cbr(width: int, filters: int, kernel: int = 3, **kwargs: Any) -> nn.Sequential:
    """Convolution, BN, ReLU."""
    layer = conv(width, filters, kernel, bias=False, **kwargs)
    return nn.Sequential(layer, nn.BatchNorm2d(filters), nn.ReLU())


def head(width: int) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, CLASSES))


def between(*layers: nn.Module | Callable[..., Any], width: int = 8, then: int = 8) -> nn.Module:
    """3 → `width` channels, the layers in question, `then` → 6 channels, classifier."""
    middle = [x if isinstance(x, nn.Module) else Do(x) for x in layers]
    return nn.Sequential(cbr(3, width), *middle, cbr(then, 6), head(6))


# ---- convolutions --------------------------------------------------------------------------------


def plain() -> nn.Module:
    return nn.Sequential(cbr(3, 8), cbr(8, 12), head(12))


def conv1d() -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(3, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.Conv1d(8, 6, 3), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(6, CLASSES),
    )  # fmt: skip


def conv3d() -> nn.Module:
    return nn.Sequential(
        nn.Conv3d(3, 8, 3), nn.BatchNorm3d(8), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 6, 1),
        nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(6, CLASSES),
    )  # fmt: skip


def transposed() -> nn.Module:
    up = nn.ConvTranspose2d(8, 10, 2, stride=2)
    return between(up, nn.BatchNorm2d(10), nn.ReLU(), then=10)


def transposed_depthwise() -> nn.Module:
    up = nn.ConvTranspose2d(8, 8, 2, stride=2, groups=8)
    return between(up, nn.BatchNorm2d(8), nn.ReLU())


def transposed_grouped() -> nn.Module:
    up = nn.ConvTranspose2d(8, 12, 2, stride=2, groups=2)
    return between(up, nn.BatchNorm2d(12), nn.ReLU(), then=12)


def depthwise() -> nn.Module:
    return between(conv(8, 8, groups=8), nn.BatchNorm2d(8), nn.ReLU())


def depthwise_multiplier() -> nn.Module:
    return between(conv(8, 16, groups=8), nn.BatchNorm2d(16), nn.ReLU(), then=16)


def grouped() -> nn.Module:
    return between(conv(8, 12, groups=2), nn.BatchNorm2d(12), nn.ReLU(), then=12)


def dilated_strided() -> nn.Module:
    return between(conv(8, 10, stride=2, dilation=2), nn.SiLU(inplace=True), then=10)


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(12, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 10), nn.Tanh(),
        nn.Linear(10, CLASSES),
    )  # fmt: skip


def plain_bn() -> nn.Module:
    """BN without scale and shift."""
    return between(conv(8, 10), nn.BatchNorm2d(10, affine=False), nn.ReLU(), then=10)


def batch_statistics() -> nn.Module:
    """BN without running statistics: the batch's own, also in eval mode."""
    norm = nn.BatchNorm2d(10, track_running_stats=False)
    return between(conv(8, 10), norm, nn.ReLU(), then=10)


def no_norm() -> nn.Module:
    return nn.Sequential(conv(3, 8), nn.ReLU(), conv(8, 6), nn.GELU(), head(6))


def channels_last() -> nn.Module:
    return plain().to(memory_format=torch.channels_last)


# ---- residual streams ----------------------------------------------------------------------------


class Residual(nn.Module):
    """relu(x + body(x)), or x + body(x)."""

    def __init__(self, *body: nn.Module, shortcut: nn.Module | None = None, act: bool = True):
        super().__init__()
        self.body = nn.Sequential(*body)
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.act = nn.ReLU() if act else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.shortcut(x) + self.body(x))


def post_activation() -> nn.Module:
    down = nn.Sequential(nn.Conv2d(8, 12, 1, 2, bias=False), nn.BatchNorm2d(12))
    return nn.Sequential(
        cbr(3, 8),
        Residual(cbr(8, 10), conv(10, 8, bias=False), nn.BatchNorm2d(8)),
        Residual(cbr(8, 10, stride=2), conv(10, 12), nn.BatchNorm2d(12), shortcut=down),
        head(12),
    )


class PreActivation(nn.Module):
    """Bottleneck BN-ReLU-conv ×3; the projection reads relu(bn1(x)), as the authors have it."""

    def __init__(self, width: int, inner: int, out: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(width), conv(width, inner, 1, bias=False)
        self.bn2, self.conv2 = nn.BatchNorm2d(inner), conv(inner, inner, bias=False)
        self.bn3, self.conv3 = nn.BatchNorm2d(inner), conv(inner, out, 1, bias=False)
        self.project = conv(width, out, 1, bias=False) if width != out else None

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(x))
        shortcut = x if self.project is None else self.project(y)
        y = self.conv2(F.relu(self.bn2(self.conv1(y))))
        return self.conv3(F.relu(self.bn3(y))) + shortcut


def pre_activation() -> nn.Module:
    return nn.Sequential(
        conv(3, 8, bias=False), PreActivation(8, 4, 16), PreActivation(16, 4, 16),
        nn.BatchNorm2d(16), nn.ReLU(), head(16),
    )  # fmt: skip


def single_conv_residual() -> nn.Module:
    return nn.Sequential(cbr(3, 8), Residual(conv(8, 8), nn.BatchNorm2d(8)), cbr(8, 6), head(6))


class PaddedShortcut(nn.Module):
    """Shortcut of the CIFAR ResNets: every second pixel, new channels filled with zeros."""

    def __init__(self, width: int, out: int) -> None:
        super().__init__()
        self.body = nn.Sequential(cbr(width, 6, stride=2), conv(6, out), nn.BatchNorm2d(out))
        self.extra = (out - width) // 2

    def forward(self, x: Tensor) -> Tensor:
        shortcut = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra, self.extra))
        return F.relu(self.body(x) + shortcut)


def padded_shortcut() -> nn.Module:
    return nn.Sequential(cbr(3, 8), PaddedShortcut(8, 12), head(12))


def inverted_residual() -> nn.Module:
    def block(width: int, out: int) -> list[nn.Module]:
        narrow = [conv(16, out, 1, bias=False), nn.BatchNorm2d(out)]
        return [cbr(width, 16, 1), cbr(16, 16, groups=16), *narrow]

    return nn.Sequential(
        cbr(3, 8), *block(8, 6), Residual(*block(6, 6), act=False), cbr(6, 10, 1), head(10)
    )


def separable() -> nn.Module:
    """MobileNet v1: depthwise and pointwise in turn."""
    steps = [nn.Sequential(cbr(8, 8, groups=8), cbr(8, 8, 1)) for _ in range(3)]
    return nn.Sequential(cbr(3, 8), *steps, head(8))


class SubtractedBranches(nn.Module):
    """a − b is as residual as a + b."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.tail = cbr(3, 8), cbr(3, 8), nn.Sequential(cbr(8, 6), head(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.a(x) - self.b(x))


class MultipliedBranches(SubtractedBranches):
    """a · b is a gate, not a residual stream."""

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.a(x) * self.b(x))


class NormedBranch(nn.Module):
    """x + conv(f(norm(x))): the convolution may select channels of the stream."""

    def __init__(self, norm: nn.Module, *inner: nn.Module, width: int = 8) -> None:
        super().__init__()
        self.norm, self.inner, self.conv = norm, nn.Sequential(*inner), conv(width, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv(self.inner(self.norm(x)))


def group_norm_stream() -> nn.Module:
    """Statistics over several channels: a selection must not narrow the norm."""
    blocks = (
        NormedBranch(nn.GroupNorm(2, 8), nn.SiLU(), conv(8, 12), nn.SiLU(), width=12)
        for _ in range(2)
    )
    return nn.Sequential(conv(3, 8), *blocks, nn.GroupNorm(2, 8), nn.SiLU(), head(8))


def prelu_stream() -> nn.Module:
    """A PReLU per channel stands between the norm and its consumer."""
    return nn.Sequential(
        conv(3, 8), NormedBranch(nn.BatchNorm2d(8), nn.PReLU(8)), cbr(8, 6), head(6)
    )


class SampledBranch(nn.Module):
    """A residual block that changes the image size (diffusion U-Nets)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(4, 8), conv(8, 8)
        self.norm2, self.conv2 = nn.GroupNorm(4, 8), conv(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(F.silu(self.norm1(x)), scale_factor=2.0)
        y = self.conv2(F.silu(self.norm2(self.conv1(y))))
        return y + F.interpolate(x, scale_factor=2.0)


def sampled_stream() -> nn.Module:
    first = NormedBranch(nn.GroupNorm(4, 8), nn.SiLU())
    return nn.Sequential(
        conv(3, 8), first, SampledBranch(), nn.AvgPool2d(2), nn.GroupNorm(4, 8), nn.SiLU(), head(8)
    )


class MultiQuery(nn.Module):
    """Attention of MobileNetV4: keys and values of a smaller image, through a depthwise layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.query = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.down = nn.Conv2d(8, 8, 3, 2, 1, groups=8, bias=False)
        self.down_norm, self.key = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 1)
        self.value, self.out = nn.Conv2d(8, 6, 1), nn.Conv2d(6, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        z = self.down_norm(self.down(y))
        weights = self.query(y).flatten(2).transpose(1, 2) @ self.key(z).flatten(2)
        y = weights.softmax(-1) @ self.value(z).flatten(2).transpose(1, 2)
        return x + self.out(y.transpose(1, 2).reshape(x.shape[0], -1, *x.shape[2:]))


class Checked(nn.Module):
    """Larger, then smaller, where the width is compared with an attribute, as in diffusers."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.size, self.channels = 2, width
        self.conv = conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        assert x.shape[1] == self.channels
        if self.size == 2:
            return self.conv(F.interpolate(x, scale_factor=2.0))
        return self.conv(F.pad(x, (0, 1, 0, 1)))


class ReadHalves(nn.Module):
    """Two halves, one of them scaled by a number that the forward reads from a tensor."""

    def __init__(self, *, constant: bool) -> None:
        super().__init__()
        self.inner, self.constant = conv(4, 4), constant
        self.gate = nn.Parameter(torch.ones(1))
        self.steps = torch.tensor([2.0, 4.0])  # no buffer: the strides of a detector's levels

    def forward(self, x: Tensor) -> Tensor:
        read = self.steps[1] if self.constant else self.gate
        number = 4.0 if read > 0 else 2.0
        a, b = x.chunk(2, 1)
        return torch.cat([a * (1 + number), self.inner(b)], 1)


class CheckedConv(nn.Module):
    """The layer comes right behind the check."""

    def __init__(self, width: int, filters: int) -> None:
        super().__init__()
        self.filters, self.width = filters, width
        self.conv = conv(width, filters, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != self.width:
            raise ValueError("another width")
        return self.conv(x)


def checked_widths() -> nn.Module:
    norms = nn.BatchNorm2d(8), nn.BatchNorm2d(10)
    return between(
        Checked(8), norms[0], nn.ReLU(), Checked(8), CheckedConv(8, 10), norms[1], then=10
    )


class NumberedView(nn.Module):
    """WideResNet: the features before the classifier are viewed at a width that is a number."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.block = conv(3, 8), PreActivation(8, 4, 8)
        self.norm, self.width, self.fc = nn.BatchNorm2d(8), 8, nn.Linear(8, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.block(self.stem(x))))
        return self.fc(F.adaptive_avg_pool2d(x, 1).view(-1, self.width))


# ---- concatenation and splitting -----------------------------------------------------------------


class Dense(nn.Module):
    """DenseNet: every layer reads all that came before, through a BN of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 6)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.BatchNorm2d(w), nn.ReLU(), conv(w, 4)) for w in (6, 10, 14)
        )
        self.tail = nn.Sequential(nn.BatchNorm2d(18), nn.ReLU(), head(18))

    def forward(self, x: Tensor) -> Tensor:
        parts = [self.stem(x)]
        for layer in self.layers:
            parts.append(layer(torch.cat(parts, 1)))
        return self.tail(torch.cat(parts, 1))


class Branches(nn.Module):
    """Inception: branches side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def inception() -> nn.Module:
    pooled = nn.Sequential(nn.MaxPool2d(3, 1, 1), cbr(8, 5, 1))
    branches = Branches(cbr(8, 4, 1), nn.Sequential(cbr(8, 6, 1), cbr(6, 7)), pooled)
    return between(branches, then=16)


def half_split() -> nn.Module:
    def cross(x: Tensor) -> Tensor:
        a, b = x.split(x.shape[1] // 2, 1)
        return torch.cat([b.relu(), a.sigmoid()], 1)

    return between(cross)


def chunk() -> nn.Module:
    def cross(x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return torch.cat([b, a.tanh()], 1)

    return between(cross)


def glu() -> nn.Module:
    def gate(x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return a * b.sigmoid()

    return between(conv(8, 12), gate, then=6)


def glu_layer() -> nn.Module:
    return between(conv(8, 12), nn.GLU(1), then=6)


class FixedSlices(nn.Module):
    """The border between the slices is an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.border = 5
        self.left, self.right = cbr(5, 4), cbr(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.left(x[:, : self.border]), self.right(x[:, self.border :])], 1)


class ListSplit(nn.Module):
    """The widths of the parts are an attribute (MixNet)."""

    def __init__(self) -> None:
        super().__init__()
        self.splits = [5, 3]
        self.parts = nn.ModuleList([cbr(5, 5, groups=5), cbr(3, 3, 5, groups=3)])

    def forward(self, x: Tensor) -> Tensor:
        pieces = x.split(self.splits, 1)
        return torch.cat([part(p) for part, p in zip(self.parts, pieces, strict=True)], 1)


class Res2(nn.Module):
    """Res2Net: parts of equal width, each of which reads the one before."""

    def __init__(self) -> None:
        super().__init__()
        self.width = 4
        self.convs = nn.ModuleList(cbr(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        parts = torch.split(x, self.width, 1)
        first = self.convs[0](parts[0])
        second = self.convs[1](first + parts[1])
        return torch.cat([first, second, parts[2]], 1)


def literal_split() -> nn.Module:
    def cross(x: Tensor) -> Tensor:
        a, b = x.split([5, 3], 1)
        return torch.cat([b, a], 1)

    return between(cross)


def strided_slices() -> nn.Module:
    return between(lambda x: torch.cat([x[:, ::2], x[:, 1::2].relu()], 1))


def shuffle_by_hand() -> nn.Module:
    def shuffle(x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        return x.view(b, 2, c // 2, h, w).transpose(1, 2).reshape(b, c, h, w)

    return between(conv(8, 12, groups=2), nn.BatchNorm2d(12), shuffle, then=12)


class ShuffleUnit(nn.Module):
    """ShuffleNet v2: one half passes, the other is worked on, then they are shuffled."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(cbr(4, 6, 1), conv(6, 6, groups=6), cbr(6, 4, 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        x = torch.cat([a, self.branch(b)], 1)
        n, c, h, w = x.shape
        return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, -1, h, w)


def shuffle_layer() -> nn.Module:
    return between(conv(8, 12, groups=2), nn.ChannelShuffle(2), then=12)


def pixel_shuffle() -> nn.Module:
    return between(conv(8, 24), nn.PixelShuffle(2), nn.ReLU(), then=6)


def pixel_unshuffle() -> nn.Module:
    return between(nn.PixelUnshuffle(2), then=32)


def maxout() -> nn.Module:
    def largest(x: Tensor) -> Tensor:
        return x.view(x.shape[0], -1, 2, *x.shape[2:]).amax(2)

    return between(conv(8, 12), largest, then=6)


def flipped() -> nn.Module:
    return between(lambda x: x.flip(1))


def rolled() -> nn.Module:
    return between(lambda x: x.roll(1, 1))


def repeated() -> nn.Module:
    return between(lambda x: x.repeat(1, 2, 1, 1), then=16)


class UNet(nn.Module):
    """Skip connections by concatenation, one upsampled and one transposed convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2, self.bottom = cbr(3, 6), cbr(6, 8), cbr(8, 10)
        self.pool, self.up = nn.MaxPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear")
        self.up1, self.up2 = cbr(18, 8), nn.ConvTranspose2d(8, 6, 2, stride=2)
        self.last = nn.Sequential(cbr(12, 6), nn.Conv2d(6, 2, 1))

    def forward(self, x: Tensor) -> Tensor:
        a = self.down1(x)
        b = self.down2(self.pool(a))
        c = self.bottom(self.pool(b))
        y = self.up1(torch.cat([b, self.up(c)], 1))
        return self.last(torch.cat([a, self.up2(y)], 1))


class ImageBeside(nn.Module):
    """The input image is concatenated to features."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tail = cbr(3, 8), nn.Sequential(cbr(11, 6), head(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(torch.cat([x, self.first(x)], 1))


# ---- gates and attention -------------------------------------------------------------------------


class SqueezeExcite(nn.Module):
    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.reduce, self.expand = nn.Conv2d(width, inner, 1), nn.Conv2d(inner, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.expand(F.relu(self.reduce(x.mean((2, 3), keepdim=True))))
        return x * gate.sigmoid()


class LinearSqueezeExcite(nn.Module):
    """The same with linear layers and views."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc = nn.Sequential(
            nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width), nn.Sigmoid()
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.shape
        return x * self.fc(F.adaptive_avg_pool2d(x, 1).view(b, c)).view(b, c, 1, 1).expand_as(x)


class ScalarGates(nn.Module):
    """A learned number, and one that depends on the image."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.gate = nn.Parameter(torch.tensor(0.7)), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        gate = self.gate(x.mean((2, 3))).sigmoid()
        return self.gain * x * gate.view(-1, 1, 1, 1)


class SpatialGate(nn.Module):
    """One channel, broadcast over all."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x).sigmoid() + self.gate(x)


class PooledSpatialGate(nn.Module):
    """CBAM: mean and maximum over the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = conv(2, 1)

    def forward(self, x: Tensor) -> Tensor:
        pooled = torch.cat([x.mean(1, keepdim=True), x.amax(1, keepdim=True)], 1)
        return x * self.gate(pooled).sigmoid()


class SelectiveKernel(nn.Module):
    """SKNet: softmax over branches that are stacked."""

    def __init__(self) -> None:
        super().__init__()
        self.branches = nn.ModuleList([cbr(8, 6), cbr(8, 6, dilation=1)])
        self.reduce, self.expand = cbr(6, 4, 1), nn.Conv2d(4, 12, 1)

    def forward(self, x: Tensor) -> Tensor:
        stacked = torch.stack([branch(x) for branch in self.branches], 1)
        pooled = stacked.sum(1).mean((2, 3), keepdim=True)
        weights = self.expand(self.reduce(pooled))
        b, c, h, w = weights.shape
        weights = weights.view(b, 2, c // 2, h, w).softmax(1)
        return (stacked * weights).sum(1)


class Attention(nn.Module):
    """Multi-head self-attention by matrix products; the width of a head is never named."""

    def __init__(self, width: int = 8, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.scale = heads, (width // heads) ** -0.5
        self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.proj = nn.Linear(width, width)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.transpose(-2, -1) * self.scale).softmax(-1) @ v

    def forward(self, x: Tensor) -> Tensor:
        b, _, h, w = x.shape
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = (
            layer(tokens).view(b, h * w, self.heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        )
        y = self.attend(q, k, v).transpose(1, 2).flatten(2)
        return self.proj(y).transpose(1, 2).unflatten(2, (h, w))


def split_axis(x: Tensor, width: int) -> Tensor:
    """(..., parts · width) → (parts, ..., width), as einops does: it refuses a rest."""
    if x.shape[-1] % width:
        raise RuntimeError(f"can't divide axis of length {x.shape[-1]} in chunks of {width}")
    return x.view(*x.shape[:-1], -1, width).movedim(-2, 0)


class RearrangedAttention(nn.Module):
    """Heads of a fixed width, by einops (SCUNet); many attributes equal a number of the view."""

    def __init__(self, width: int = 8, head_width: int = 4) -> None:
        super().__init__()
        self.input_width = self.output_width = width
        self.head_width, self.heads = head_width, width // head_width
        for name in ("window", "shift", "rows", "columns", "depth", "stride", "steps", "level"):
            setattr(self, name, 4)
        self.embed, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.flatten(2).transpose(1, 2)
        q, k, v = split_axis(self.embed(tokens), self.head_width).chunk(3, dim=0)
        y = (q @ k.transpose(-2, -1)).softmax(-1) @ v
        y = y.movedim(0, -2).flatten(2)
        return self.proj(y).transpose(1, 2).unflatten(2, x.shape[2:])


def rearranged() -> nn.Module:
    return between(*(RearrangedAttention() for _ in range(3)))


class FusedAttention(Attention):
    """The same through torch's own function."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class BilinearAttention(nn.Module):
    """A matrix for each half of the channels, laid out for every channel by a view."""

    def __init__(self, width: int = 8, side: int = 4) -> None:
        super().__init__()
        self.matrices = nn.Conv2d(width, 2 * side * side, side)

    def forward(self, x: Tensor) -> Tensor:
        b, c, s, _ = x.shape
        p = self.matrices(x).view(b, 2, 1, s, s).sigmoid().expand(b, 2, c // 2, s, s)
        return p.reshape(b, c, s, s) @ x


# ---- parameters that are not plain layers --------------------------------------------------------


def per_channel_prelu() -> nn.Module:
    return between(conv(8, 10), nn.BatchNorm2d(10), nn.PReLU(10), then=10)


def single_prelu() -> nn.Module:
    return between(conv(8, 10), nn.BatchNorm2d(10), nn.PReLU(), then=10)


class LayerScale(nn.Module):
    """A bare parameter, one number per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.rand(width, 1, 1) + 0.2)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class BareBias(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(width))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.shift.view(1, -1, 1, 1)


class ConstantPerChannel(nn.Module):
    """A buffer and a plain tensor attribute, one number per channel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("shift", torch.randn(1, width, 1, 1))
        self.factor = torch.rand(width, 1, 1) + 0.5

    def forward(self, x: Tensor) -> Tensor:
        return (x - self.shift) / self.factor


class UsedTwice(nn.Module):
    """One layer reads its own output, so its inputs and outputs are the same channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.again, self.tail = cbr(3, 8), cbr(8, 8), nn.Sequential(cbr(8, 6), head(6))

    def forward(self, x: Tensor) -> Tensor:
        return self.tail(self.again(self.again(self.first(x))))


class SharedWeight(nn.Module):
    """Two layers with one parameter, side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.a, self.b = cbr(3, 8), conv(8, 6), conv(8, 6)
        self.b.weight = self.a.weight
        self.tail = nn.Sequential(cbr(12, 7), head(7))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        functional = F.conv2d(x, self.b.weight, self.b.bias, padding=1)
        return self.tail(torch.cat([self.a(x).relu(), functional], 1))


class TiedDecoder(nn.Module):
    """The decoder is the encoder's weight, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(12, 8)
        self.shift = nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.encoder(x).relu(), self.encoder.weight.t(), self.shift)


class Functional(nn.Module):
    """No layers at all: parameters, buffers and torch.nn.functional."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(8, 3, 3, 3) / 5), nn.Parameter(torch.randn(8))
        self.gamma, self.beta = nn.Parameter(torch.rand(8) + 0.3), nn.Parameter(torch.randn(8))
        self.register_buffer("mean", torch.randn(8))
        self.register_buffer("var", torch.rand(8) + 0.5)
        self.w2 = nn.Parameter(torch.randn(6, 8, 3, 3) / 8)
        self.w3 = nn.Parameter(torch.randn(CLASSES, 6))

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.w1, self.b1, padding=1)
        x = F.batch_norm(x, self.mean, self.var, self.gamma, self.beta, self.training)
        x = F.conv2d(x.relu(), self.w2)
        return F.linear(x.relu().mean((2, 3)), self.w3)


class Listed(nn.Module):
    """Weights in a ParameterList."""

    def __init__(self) -> None:
        super().__init__()
        shapes = [(8, 3, 3, 3), (6, 8, 3, 3), (CLASSES, 6)]
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(s) / 4) for s in shapes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.weights[0]).relu()
        x = F.conv2d(x, self.weights[1]).relu()
        return x.mean((2, 3)) @ self.weights[2].t()


class Einsum(nn.Module):
    """A 1×1 convolution written as a sum over letters."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bchw,oc->bohw", x, self.weight)


class StandardisedConv(nn.Conv2d):
    """The weights of each filter have mean 0 and variance 1: removing an input changes the rest."""

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        weight = weight / (weight.var((1, 2, 3), keepdim=True) + 1e-5).sqrt()
        return F.conv2d(x, weight, self.bias, padding=1)


def standardised() -> nn.Module:
    return between(StandardisedConv(8, 10, 3), then=10)


class StandardisedByNorm(nn.Conv2d):
    """The same by a norm over the weights (BiT)."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = F.batch_norm(flat, None, None, training=True).reshape_as(self.weight)
        return F.conv2d(x, weight, self.bias, padding=1)


def standardised_by_norm() -> nn.Module:
    return between(StandardisedByNorm(8, 10, 3), then=10)


def standardised_stream() -> nn.Module:
    block = NormedBranch(nn.GroupNorm(4, 8), nn.ReLU())
    block.conv = StandardisedByNorm(8, 8, 3)
    last = (nn.GroupNorm(4, 8), nn.ReLU(), StandardisedByNorm(8, 6, 3), nn.ReLU(), head(6))
    return nn.Sequential(StandardisedByNorm(3, 8, 3), block, *last)


class ConditionalConv(nn.Module):
    """Its weights are a mixture of experts, computed from the input (CondConv)."""

    def __init__(self, width: int, filters: int, experts: int = 3) -> None:
        super().__init__()
        self.shape = (filters, width, 1, 1)
        self.route = nn.Linear(width, experts)
        self.experts = nn.Parameter(torch.randn(experts, filters * width) / 4)

    def forward(self, x: Tensor) -> Tensor:
        share = self.route(x.mean((2, 3)).mean(0, keepdim=True)).sigmoid()
        return F.conv2d(x, (share @ self.experts).view(self.shape))


def conditional() -> nn.Module:
    return between(ConditionalConv(8, 4), nn.ReLU(), then=4)


def transposed_weight_norm() -> nn.Module:
    """The magnitudes belong to the inputs of a transposed convolution: they go with them."""
    transposed = nn.utils.parametrizations.weight_norm(nn.ConvTranspose2d(8, 6, 2, 2))
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), transposed, nn.ReLU(), nn.Conv2d(6, 5, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip


def weight_normalised() -> nn.Module:
    return between(weight_norm(conv(8, 10)), nn.ReLU(), then=10)


class Indexed(nn.Module):
    """An integer buffer picks channels, by indexing or by index_select."""

    def __init__(self, *, select: bool) -> None:
        super().__init__()
        self.register_buffer("order", torch.tensor([3, 1, 7, 0, 5, 2]))
        self.select = select

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.order) if self.select else x[:, self.order]


# ---- in-place writes and control flow ------------------------------------------------------------


class SliceWrites(nn.Module):
    """Results are written into slices of a tensor of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = cbr(3, 4), cbr(3, 6)
        self.tail = nn.Sequential(cbr(10, 7), head(7))

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.a(x), self.b(x)
        both = x.new_zeros(x.shape[0], a.shape[1] + b.shape[1], *x.shape[2:])
        both[:, : a.shape[1]] = a
        both[:, a.shape[1] :] = b
        return self.tail(both)


class SliceAdd(nn.Module):
    """Something is added in place to half of the channels."""

    def __init__(self) -> None:
        super().__init__()
        self.half = 4
        self.more = conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = x.clone()
        y[:, : self.half] += self.more(x)
        return y


def in_place() -> nn.Module:
    return between(conv(8, 8), lambda x: x.mul_(2).add_(0.1), nn.ReLU(inplace=True), nn.Dropout())


def shape_branch() -> nn.Module:
    def forward(x: Tensor) -> Tensor:
        return F.max_pool2d(x, 2) if x.shape[-1] > 4 and x.shape[0] < 100 else x[:, :, None]

    return between(forward)


def width_branch() -> nn.Module:
    return between(lambda x: x.sigmoid() if x.shape[1] == 8 else x)


class ValueBranch(nn.Module):
    """Which way it goes depends on the numbers in the image, so tracing needs real ones."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.tail = cbr(3, 8), nn.Sequential(cbr(8, 6), head(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.tail(y * 2 if x.mean() > 0 else y.tanh())


def feature_branch() -> nn.Module:
    return between(lambda x: x * 2 if x.mean() > 0 else x.tanh())


class CountedMean(nn.Module):
    """Divides by the number of channels, which pruning changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = cbr(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) / x.shape[1] ** 0.5


class WidthAsTensor(CountedMean):
    """The same, but the number becomes a tensor first."""

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x) / torch.tensor(float(x.shape[1])).sqrt()


class WidthByKeyword(CountedMean):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return torch.add(y, y.tanh(), alpha=1 / y.shape[1])


class EarlyExit(nn.Module):
    """The example takes the long way; the short way has a layer that it never meets."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.short = cbr(3, 8), head(8)
        self.second, self.long = cbr(8, 12), head(12)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x)
        return self.short(y) if x.abs().mean() < 0.1 else self.long(self.second(y))


class DroppedTokens(nn.Module):
    """Channels on the last axis, some entries dropped in training."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.tokens = cbr(3, 8), nn.Linear(8, 16)
        self.drop, self.out = nn.Dropout(0.1), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x).flatten(2).transpose(1, 2)
        return self.out(self.drop(self.tokens(y).relu())).mean(1)


class Positive(nn.Module):
    """Softplus: nothing it makes is zero, so a channel cannot be silenced by zeros."""

    def forward(self, weight: Tensor) -> Tensor:
        return F.softplus(weight)


def positive_weights() -> nn.Module:
    conv = nn.Conv2d(8, 8, 3, padding=1)
    register_parametrization(conv, "weight", Positive())
    return between(conv, nn.BatchNorm2d(8))


# ---- inputs and outputs --------------------------------------------------------------------------


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.image, self.other = cbr(3, 8), nn.Linear(4, 8)
        self.tail = nn.Sequential(cbr(8, 6), head(6))

    def forward(self, image: Tensor, other: Tensor) -> Tensor:
        return self.tail(self.image(image) * self.other(other)[:, :, None, None].sigmoid())


class SeveralOutputs(nn.Module):
    """A dict of a tuple and a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(cbr(3, 8), cbr(8, 6))
        self.heads = nn.ModuleList([head(6), head(6)])

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.body(x)
        return {"pair": tuple(one(x) for one in self.heads), "size": x.new_tensor(x.shape[-1])}


class Auxiliary(nn.Module):
    """A second classifier that exists in training only."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = cbr(3, 8), cbr(8, 6)
        self.aux, self.last = nn.Sequential(cbr(8, 4), head(4)), head(6)

    def forward(self, x: Tensor) -> Any:
        x = self.first(x)
        y = self.last(self.second(x))
        return (y, self.aux(x)) if self.training else y


class Features(nn.Module):
    """Returns what it computes on the way."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = cbr(3, 8), cbr(8, 6), cbr(6, 7)

    def forward(self, x: Tensor) -> list[Tensor]:
        a = self.a(x)
        return [a, self.c(self.b(a))]


def flattened() -> nn.Module:
    return nn.Sequential(
        cbr(3, 8), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10), nn.BatchNorm1d(10), nn.ReLU(),
        nn.Linear(10, CLASSES),
    )  # fmt: skip


# ---- norms and image operators -------------------------------------------------------------------


def group_norm() -> nn.Module:
    return between(conv(8, 12), nn.GroupNorm(4, 12), nn.ReLU(), then=12)


def group_norm_of_one() -> nn.Module:
    return between(conv(8, 12), nn.GroupNorm(1, 12), nn.ReLU(), then=12)


def instance_norm() -> nn.Module:
    return between(conv(8, 10), nn.InstanceNorm2d(10, affine=True), nn.ReLU(), then=10)


def tracked_instance_norm() -> nn.Module:
    norm = nn.InstanceNorm2d(10, affine=True, track_running_stats=True)
    return between(conv(8, 10), norm, nn.ReLU(), then=10)


class ConvNeXt(nn.Module):
    """LayerNorm over the channels, then an inverted bottleneck of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise, self.norm = conv(8, 8, groups=8), nn.LayerNorm(8)
        self.wide, self.narrow = nn.Linear(8, 16), nn.Linear(16, 8)
        self.scale = nn.Parameter(torch.rand(8))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


def channel_normalised() -> nn.Module:
    return between(lambda x: F.normalize(x, dim=1))


def channel_softmax() -> nn.Module:
    return between(lambda x: x.softmax(1))


def pools() -> nn.Module:
    return between(
        nn.MaxPool2d(2), nn.AvgPool2d(3, 1, 1), nn.Dropout(), nn.AdaptiveMaxPool2d(3),
        nn.LPPool2d(2, 2),
    )  # fmt: skip


def resizes() -> nn.Module:
    return between(
        nn.Upsample(scale_factor=2), lambda x: F.interpolate(x, size=5, mode="bicubic"),
        nn.Upsample(6, mode="bilinear", align_corners=True),
    )  # fmt: skip


def pads() -> nn.Module:
    return between(
        nn.ZeroPad2d(1), nn.ReflectionPad2d(1), nn.ReplicationPad2d(1), lambda x: F.pad(x, (-1, 1)),
        nn.ConstantPad2d(1, 0.5),
    )  # fmt: skip


# ---- layers that tracing has to be taught --------------------------------------------------------


class UnfoldedConv(nn.Module):
    """A convolution by unfolding the image, which tracing cannot follow by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(10, 8, 3, 3) / 8)
        self.bias = nn.Parameter(torch.randn(10))

    def forward(self, x: Tensor) -> Tensor:
        columns = F.unfold(x, 3, padding=1)
        y = self.weight.flatten(1) @ columns + self.bias[:, None]
        return y.view(x.shape[0], -1, *x.shape[2:])


TAUGHT_MODULE = {
    UnfoldedConv: lambda call: call.linear(call.args[0], call.module.weight, call.module.bias)
}
TAUGHT_OPERATOR = {torch.ops.aten.grid_sampler_2d: lambda call: call.same(call.args[0])}


class Warped(nn.Module):
    """Resamples the image on a fixed grid."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("theta", torch.tensor([[[0.9, 0.1, 0.0], [-0.1, 0.9, 0.2]]]))

    def forward(self, x: Tensor) -> Tensor:
        grid = F.affine_grid(self.theta.expand(x.shape[0], -1, -1), x.shape, align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)


def taught_module() -> nn.Module:
    return between(UnfoldedConv(), then=10)


def taught_operator() -> nn.Module:
    return between(Warped())


NETS: tuple[Net, ...] = (
    Net("plain", plain, 20 / 25, 20 / 25),
    Net("conv1d", conv1d, 14 / 19, 14 / 19, (2, 3, 12)),
    Net("conv3d", conv3d, 14 / 19, 14 / 19, (2, 3, 6, 6, 6)),
    Net("transposed", transposed, 24 / 29, 24 / 29),
    Net("transposed depthwise", transposed_depthwise, 14 / 19, 14 / 19),
    Net("transposed grouped", transposed_grouped, 16 / 21, 16 / 21),
    Net("depthwise", depthwise, 14 / 19, 14 / 19),
    Net("depthwise multiplier", depthwise_multiplier, 14 / 19, 14 / 19),
    Net("grouped", grouped, 16 / 21, 16 / 21),
    Net("dilated and strided", dilated_strided, 24 / 29, 24 / 29),
    Net("mlp", mlp, 26 / 31, 26 / 31, (4, 12)),
    Net("BN without affine", plain_bn, 24 / 29, 24 / 29),
    Net("BN of the batch", batch_statistics, 24 / 29, 24 / 29),
    Net("no norm", no_norm, 14 / 19, 14 / 19),
    Net("channels last", channels_last, 20 / 25, 20 / 25),
    Net("post-activation residual", post_activation, 20 / 65, 40 / 45),
    # the stem is no stream: a projection stands between it and the first addition
    Net("pre-activation residual", pre_activation, 24 / 77, 40 / 45),
    Net("single-conv residual", single_conv_residual, 6 / 27, 14 / 19),
    # where the shortcut adds zeros, a removed channel would need less padding
    Net("padded shortcut", padded_shortcut, 6 / 31, 14 / 23),
    Net("inverted residual", inverted_residual, 50 / 67, 56 / 61),
    # two GroupNorm groups of four channels count once each where they can go
    Net("GroupNorm stream", group_norm_stream, 12 / 45, 14 / 19),
    Net("PReLU stream", prelu_stream, 6 / 27, 14 / 19),
    Net("sampled stream", sampled_stream, 4 / 41, 8 / 13),
    Net("multi-query attention", lambda: between(MultiQuery()), 12 / 57, 20 / 49),
    Net(
        "halves and a constant",
        lambda: between(ReadHalves(constant=True), then=8),
        18 / 23,
        18 / 23,
    ),
    Net(
        "halves and a value", lambda: between(ReadHalves(constant=False), then=8), 18 / 23, 18 / 23
    ),
    Net("checked widths", checked_widths, 40 / 45, 40 / 45),
    Net("numbered view", NumberedView, 8 / 29, 16 / 21),
    Net("separable", separable, 32 / 37, 32 / 37),
    Net("subtracted branches", SubtractedBranches, 6 / 27, 14 / 19),
    Net("multiplied branches", MultipliedBranches, 14 / 19, 14 / 19),
    Net("dense", Dense, 18 / 23, 18 / 23),
    Net("inception", inception, 36 / 41, 36 / 41),
    Net("half split", half_split, 14 / 19, 14 / 19),
    Net("chunk", chunk, 14 / 19, 14 / 19),
    Net("GLU by chunk", glu, 20 / 25, 20 / 25),
    Net("GLU layer", glu_layer, 20 / 25, 20 / 25),
    Net("fixed slices", lambda: between(FixedSlices()), 22 / 27, 22 / 27),
    Net("list split", lambda: between(ListSplit()), 14 / 19, 14 / 19),
    # keep: the middle part is added to, and the parts must stay as wide as it is
    Net("res2", lambda: between(Res2(), width=12, then=12), 10 / 31, 22 / 27),
    # 5 and 3 are written into the forward, where nothing can change them
    Net("literal split", literal_split, 6 / 19, 6 / 19),
    # without a channel the ones behind it swap places between even and odd
    Net("strided slices", strided_slices, 6 / 19, 6 / 19),
    Net("shuffle by hand", shuffle_by_hand, 16 / 21, 16 / 21),
    Net("shuffle unit", lambda: between(ShuffleUnit()), 20 / 25, 20 / 25),
    Net("shuffle layer", shuffle_layer, 16 / 21, 16 / 21),
    Net("pixel shuffle", pixel_shuffle, 20 / 25, 20 / 25),
    Net("pixel unshuffle", pixel_unshuffle, 14 / 19, 14 / 19),
    Net("maxout", maxout, 20 / 25, 20 / 25),
    Net("flipped", flipped, 14 / 19, 14 / 19),
    # without the last channel another one would come first
    Net("rolled", rolled, 6 / 19, 6 / 19),
    Net("repeated", repeated, 14 / 19, 14 / 19),
    Net("U-Net", UNet, 44 / 46, 44 / 46),
    Net("image beside features", ImageBeside, 14 / 19, 14 / 19),
    Net("squeeze and excite", lambda: between(SqueezeExcite(8, 4)), 18 / 23, 18 / 23),
    Net("linear squeeze and excite", lambda: between(LinearSqueezeExcite(8, 4)), 18 / 23, 18 / 23),
    Net("scalar gates", lambda: between(ScalarGates()), 14 / 19, 14 / 19),
    Net("spatial gate", lambda: between(SpatialGate()), 14 / 19, 14 / 19),
    # mean and maximum over the channels hear every one of them, without weights to cut
    Net("pooled spatial gate", lambda: between(PooledSpatialGate()), 6 / 19, 6 / 19),
    Net("selective kernel", lambda: between(SelectiveKernel(), then=6), 24 / 29, 24 / 29),
    # a head is one channel: its queries, keys and values go together
    Net("attention", lambda: between(Attention()), 24 / 29, 24 / 29, (2, 3, 4, 4)),
    Net("rearranged attention", rearranged, 44 / 49, 44 / 49, (2, 3, 4, 4)),
    Net("fused attention", lambda: between(FusedAttention()), 24 / 29, 24 / 29, (2, 3, 4, 4)),
    # which half a channel is in depends on how many come before it
    Net("bilinear attention", lambda: between(BilinearAttention()), 6 / 51, 6 / 51, (2, 3, 4, 4)),
    # the gate is the channel at this position, whichever that is
    Net("sliced gate", lambda: between(lambda x: x * x[:, 3:4].sigmoid()), 6 / 19, 6 / 19),
    Net("selected gate", lambda: between(lambda x: x * x[:, 3, None].sigmoid()), 6 / 19, 6 / 19),
    Net("PReLU per channel", per_channel_prelu, 24 / 29, 24 / 29),
    Net("PReLU", single_prelu, 24 / 29, 24 / 29),
    Net("layer scale", lambda: between(LayerScale(8)), 14 / 19, 14 / 19),
    Net("bare bias", lambda: between(conv(8, 10), BareBias(10), then=10), 24 / 29, 24 / 29),
    Net("constant per channel", lambda: between(ConstantPerChannel(8)), 14 / 19, 14 / 19),
    Net("used twice", UsedTwice, 14 / 19, 14 / 19),
    Net("shared weight", SharedWeight, 21 / 26, 21 / 26),
    Net("tied decoder", TiedDecoder, 8 / 20, 8 / 20, (2, 12)),
    Net("functional", Functional, 14 / 19, 14 / 19),
    Net("parameter list", Listed, 14 / 19, 14 / 19),
    Net("einsum", lambda: between(Einsum(), then=10), 24 / 29, 24 / 29),
    # what a standardised or normalised layer reads is kept, what it makes can go
    Net("weight standardisation", standardised, 16 / 29, 16 / 29),
    Net("conditional convolution", conditional, 9 / 54, 9 / 54),
    Net("weights through a norm", standardised_by_norm, 16 / 29, 16 / 29),
    Net("standardised stream", standardised_stream, 6 / 27, 6 / 27),
    Net("weight norm", weight_normalised, 16 / 29, 16 / 29),
    Net("transposed weight norm", transposed_weight_norm, 8 / 19, 8 / 19),
    # two channels are never picked: nobody reads them, so nothing is gained or lost by them
    Net("indexed", lambda: between(Indexed(select=False), then=6), 12 / 19, 12 / 19),
    Net("index_select", lambda: between(Indexed(select=True), then=6), 12 / 19, 12 / 19),
    Net("slice writes", SliceWrites, 17 / 22, 17 / 22),
    Net("slice add", lambda: between(SliceAdd()), 10 / 23, 14 / 19),
    Net("in place", in_place, 22 / 27, 22 / 27),
    Net("branch on shape", shape_branch, 14 / 19, 14 / 19),
    # any other width takes the other branch
    Net("branch on width", width_branch, 6 / 19, 6 / 19),
    Net("branch on values", ValueBranch, 14 / 19, 14 / 19),
    # the decision hears every channel
    Net("branch on features", feature_branch, 6 / 19, 6 / 19),
    # a number cannot be traced back to the width it comes from: the layer around it is kept
    Net("divided by the width", lambda: between(CountedMean()), 6 / 27, 6 / 27),
    Net("width as a tensor", lambda: between(WidthAsTensor()), 6 / 27, 6 / 27),
    Net("width by keyword", lambda: between(WidthByKeyword()), 14 / 27, 14 / 27),
    # what the short way would read is kept: other data may take it
    Net("early exit", EarlyExit, 12 / 25, 12 / 25),
    Net("dropped tokens", DroppedTokens, 24 / 29, 24 / 29),
    Net("positive weights", positive_weights, 6 / 27, 6 / 27),
    Net("two inputs", TwoInputs, 14 / 19, 14 / 19, ((2, 3, 8, 8), (2, 4))),
    Net("dict of inputs", TwoInputs, 14 / 19, 14 / 19, {"image": (2, 3, 8, 8), "other": (2, 4)}),
    Net("several outputs", SeveralOutputs, 14 / 24, 14 / 24),
    Net("auxiliary head", Auxiliary, 18 / 28, 18 / 28),
    Net("features as outputs", Features, 6 / 21, 6 / 21),
    Net("flattened image", flattened, 18 / 23, 18 / 23),
    Net("GroupNorm", group_norm, 18 / 23, 18 / 23),
    # statistics over all channels change with each of them
    Net("GroupNorm of one group", group_norm_of_one, 14 / 31, 26 / 31),
    Net("InstanceNorm", instance_norm, 24 / 29, 24 / 29),
    Net("tracked InstanceNorm", tracked_instance_norm, 24 / 29, 24 / 29),
    Net("LayerNorm", lambda: between(ConvNeXt()), 22 / 43, 30 / 35),
    # heads and the wide layer, with couple the stream too
    Net("transformer", lambda: Transformer(FusedQkv(8, 2)), 14 / 43, 22 / 27),
    Net("transformer by hand", lambda: Transformer(FusedQkv(8, 4, fused=False)), 16 / 45, 24 / 29),
    # the stream and all heads keep the same width; so the heads stay where the stream does
    Net("width of the input", lambda: Transformer(WidthOfInput(8, 2)), 12 / 65, 22 / 27),
    # the sizes of the one head are summed over in products, all but those of the values
    Net("one head", lambda: NumberedLayers(4, 1), 6 / 27, 14 / 23, (2, 3, 4, 4)),
    Net("heads of convolutions", lambda: NumberedLayers(16, 4), 6 / 75, 26 / 31, (2, 3, 4, 4)),
    Net("patches as rows", Patches, 4 / 25, 12 / 17, (1, 3, 4, 12)),
    Net("position table", lambda: Transformer(PositionTable(8, 2, 5)), 14 / 43, 22 / 27),
    Net("joined table", lambda: Transformer(JoinedTable(8, 2, 5)), 14 / 43, 22 / 27),
    Net("registers", lambda: Transformer(FusedQkv(8, 2), tokens=3), 14 / 43, 22 / 27),
    Net("grouped query", lambda: Transformer(GroupedQuery(), RootMeanSquare), 14 / 43, 22 / 27),
    Net("heads by groups", lambda: Transformer(ComputedHeads()), 14 / 43, 22 / 27),
    Net("groups by heads", lambda: Transformer(ComputedHeads(keys=False)), 14 / 43, 22 / 27),
    # the heads that the softmax is over, between both layers over heads
    Net("talking heads", lambda: Transformer(TalkingHeads(8, 2)), 14 / 69, 22 / 53),
    Net("weights of attention", lambda: Transformer(NeedsWeights()), 12 / 65, 20 / 49),
    # the input; hidden units of cells are added up like a stream, those inside of layers stay
    Net("LSTM", lambda: Recurrent(nn.LSTM, 2, both=True), 6 / 123, 6 / 123),
    Net("GRU", lambda: Recurrent(nn.GRU), 6 / 32, 6 / 32),
    Net("LSTM cell", lambda: Cells(nn.LSTMCell), 6 / 67, 13 / 18),
    Net("GRU cell", lambda: Cells(nn.GRUCell), 6 / 53, 13 / 18),
    Net("RMSNorm", lambda: Transformer(FusedQkv(8, 2), nn.RMSNorm), 14 / 43, 22 / 27),
    Net("ConvNeXt-V2", ConvNeXtV2, 6 / 39, 26 / 31),
    Net("normalised over channels", channel_normalised, 6 / 19, 6 / 19),
    Net("softmax over channels", channel_softmax, 6 / 19, 6 / 19),
    Net("pools", pools, 14 / 19, 14 / 19),
    Net("resizes", resizes, 14 / 19, 14 / 19),
    Net("pads", pads, 14 / 19, 14 / 19),
    Net("circular pad", lambda: between(nn.CircularPad2d(1)), 14 / 19, 14 / 19),
    Net("dropped channels", lambda: between(nn.Dropout2d()), 14 / 19, 14 / 19),
    Net("taught module", taught_module, 24 / 29, 24 / 29, kwargs={"rules": TAUGHT_MODULE}),
    Net("taught operator", taught_operator, 14 / 19, 14 / 19, kwargs={"rules": TAUGHT_OPERATOR}),
)

BY_NAME = {net.name: net for net in NETS}
