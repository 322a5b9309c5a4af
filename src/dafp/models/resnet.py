"""Post-activation basic-block ResNets for CIFAR (depth 6n+2)."""

import torch
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Conv-BN-ReLU-Conv-BN, plus the shortcut, then ReLU."""

    def __init__(self, channels: int, planes: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    """A 3×3 stem of 16 and three stages of basic blocks."""

    def __init__(self, depth: int = 56, *, classes: int = 10, width: float = 1.0) -> None:
        super().__init__()
        vars(self)["_dafp_name"] = {"name": f"resnet{depth}", "classes": classes, "width": width}
        wide = [max(1, round(planes * width)) for planes in (16, 32, 64)]
        self.conv1 = nn.Conv2d(3, wide[0], 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide[0])
        stages: list[nn.Module] = []
        channels = wide[0]
        for number, planes in enumerate(wide):
            stage = []
            for i in range((depth - 2) // 6):
                stage.append(BasicBlock(channels, planes, 2 if i == 0 and number > 0 else 1))
                channels = planes
            stages.append(nn.Sequential(*stage))
        self.stages = nn.Sequential(*stages)
        self.fc = nn.Linear(channels, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        out = self.stages(torch.relu(self.bn1(self.conv1(x))))
        logits: Tensor = self.fc(out.mean((2, 3)))
        return logits


def initialise(model: nn.Module) -> None:
    """Convolutions N(0, √(2 / (k²·C_out))); the rest keeps torch's defaults."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
