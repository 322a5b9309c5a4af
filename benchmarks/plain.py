"""Hand-written networks with the widths of a pruned one, the reference of benchmarks/deploy.py.

A block of a pre-activation network takes the first channels of the residual stream by a slice: a
hand-written network that consumes only a part of the stream has to slice it as well.
"""

from copy import deepcopy

import torch
from torch import Tensor, nn

from dafp.graph.slicing import selects
from dafp.models import VGG, ImageNetVGG, PreResNet


def same_widths(small: nn.Module) -> nn.Module:
    """A fresh network with the widths of a pruned VGG, PreResNet or torchvision ResNet."""
    if isinstance(small, (VGG, ImageNetVGG)):
        return _plain_vgg(small)
    if isinstance(small, PreResNet):
        return PlainPreResNet(small)
    return _plain_copy(small)


def _plain_vgg(small: nn.Module) -> nn.Module:
    layers = [_fresh(layer) for layer in small.features]
    return nn.Sequential(*layers, nn.AvgPool2d(2), nn.Flatten(), _fresh(small.classifier))


class PlainBlock(nn.Module):
    """BN-ReLU-Conv three times, plus the shortcut; the first BN consumes a slice of the stream."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.before = block.bn1.num_features if selects(block.bn1) else None
        self.behind = block.conv1.in_channels if selects(block.conv1) else None
        self.bn1, self.conv1 = _fresh(block.bn1), _fresh(block.conv1)
        self.bn2, self.conv2 = _fresh(block.bn2), _fresh(block.conv2)
        self.bn3, self.conv3 = _fresh(block.bn3), _fresh(block.conv3)
        self.downsample = None if block.downsample is None else _fresh(block.downsample)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(x[:, : self.before]))
        shortcut = x if self.downsample is None else self.downsample(out)
        out = self.conv2(torch.relu(self.bn2(self.conv1(out[:, : self.behind]))))
        return shortcut + self.conv3(torch.relu(self.bn3(out)))


class PlainPreResNet(nn.Module):
    """Stem, blocks and head."""

    def __init__(self, small: PreResNet) -> None:
        super().__init__()
        self.conv1, self.pool = _fresh(small.conv1), _fresh(small.pool)
        blocks = [PlainBlock(block) for stage in small.stages for block in stage]
        self.blocks = nn.Sequential(*blocks)
        self.last = small.bn.num_features if selects(small.bn) else None
        self.behind = small.fc.in_features if selects(small.fc) else None
        self.bn, self.fc = _fresh(small.bn), _fresh(small.fc)

    def forward(self, x: Tensor) -> Tensor:
        out = self.blocks(self.pool(self.conv1(x)))
        out = torch.relu(self.bn(out[:, : self.last])).mean((2, 3))
        return self.fc(out[:, : self.behind])


def _fresh(layer: nn.Module) -> nn.Module:
    """A new layer of the same shape."""
    if isinstance(layer, nn.Conv2d):
        return nn.Conv2d(
            layer.in_channels, layer.out_channels, layer.kernel_size, layer.stride,
            layer.padding, layer.dilation, layer.groups, layer.bias is not None,
        )  # fmt: skip
    if isinstance(layer, nn.BatchNorm2d):
        return nn.BatchNorm2d(layer.num_features)
    if isinstance(layer, nn.Linear):
        return nn.Linear(layer.in_features, layer.out_features)
    if isinstance(layer, nn.MaxPool2d):
        return nn.MaxPool2d(layer.kernel_size, layer.stride, layer.padding)
    return type(layer)()


def _plain_copy(small: nn.Module) -> nn.Module:
    """Replace every layer by a new one: a post-activation ResNet has no selection groups."""
    plain = deepcopy(small)
    vars(plain).pop("_dafp_pruning", None)
    for name, module in list(plain.named_modules()):
        if isinstance(module, (nn.Conv2d, nn.BatchNorm2d, nn.Linear)):
            parent, _, leaf = name.rpartition(".")
            setattr(plain.get_submodule(parent), leaf, _fresh(module))
    return plain
