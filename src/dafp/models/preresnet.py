"""Pre-activation bottleneck ResNets for CIFAR (depth 9n+2) and ImageNet (50, 101)."""

import torch
from torch import Tensor, nn

EXPANSION = 4
IMAGENET_STAGES = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3)}


class PreBottleneck(nn.Module):
    """BN-ReLU-Conv three times, plus the shortcut.

    A projection shortcut takes relu(bn1(x)), as in the paper's code; with `projects_input` it takes
    x, as in the code of Network Slimming.
    """

    def __init__(
        self, channels: int, planes: int, *, out: int, stride: int, projects_input: bool = False
    ) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, planes, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, stride, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(planes)
        self.conv3 = nn.Conv2d(planes, out, 1, bias=False)
        self.projects_input = projects_input
        self.downsample = None
        if stride != 1 or channels != out:
            self.downsample = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(x))
        shortcut = x
        if self.downsample is not None:
            shortcut = self.downsample(x if self.projects_input else out)
        out = self.conv2(torch.relu(self.bn2(self.conv1(out))))
        out = self.conv3(torch.relu(self.bn3(out)))
        total: Tensor = shortcut + out
        return total


class PreResNet(nn.Module):
    """CIFAR: a 3×3 stem of 16 and three stages. ImageNet: a 7×7 stem of 64 and four stages."""

    def __init__(
        self,
        depth: int = 56,
        *,
        classes: int = 10,
        width: float = 1.0,
        imagenet: bool = False,
        projects_input: bool = False,
    ) -> None:
        super().__init__()
        planes, blocks = _stages(depth, imagenet)
        name = f"preresnet{depth}{'-imagenet' if imagenet else '-slm' if projects_input else ''}"
        vars(self)["_dafp_name"] = {"name": name, "classes": classes, "width": width}
        stem = max(1, round(planes[0] * width))
        self.conv1 = nn.Conv2d(
            3, stem, 7 if imagenet else 3, 2 if imagenet else 1, 3 if imagenet else 1, bias=False
        )
        self.pool = nn.MaxPool2d(3, 2, 1) if imagenet else nn.Identity()
        stages: list[nn.Module] = []
        channels = stem
        for number, (plane, count) in enumerate(zip(planes, blocks, strict=True)):
            inner = max(1, round(plane * width))
            out = inner * EXPANSION
            stage = []
            for i in range(count):
                stride = 2 if i == 0 and number > 0 else 1
                block = PreBottleneck(
                    channels, inner, out=out, stride=stride, projects_input=projects_input
                )
                stage.append(block)
                channels = out
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.stages(self.pool(self.conv1(x)))
        out = torch.relu(self.bn(out)).mean((2, 3))
        logits: Tensor = self.fc(out)
        return logits


def _stages(depth: int, imagenet: bool) -> tuple[tuple[int, ...], tuple[int, ...]]:
    if imagenet:
        return (64, 128, 256, 512), IMAGENET_STAGES[depth]
    return (16, 32, 64), ((depth - 2) // 9,) * 3


def initialise(model: nn.Module) -> None:
    """Convolutions N(0, √(2 / (k²·C_out))); γ = 0.5, as in SLM's code."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, 0.5)
            nn.init.zeros_(module.bias)
