"""Two published ResNet-20 for CIFAR-10: architecture, normalisation, loading of weight files."""

from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import pad

WIDTHS = (16, 32, 64)


class PaddedShortcut(nn.Module):
    """Strided subsampling, padded with zero channels on both sides."""

    def __init__(self, more: int) -> None:
        super().__init__()
        self.more = more

    def forward(self, x: Tensor) -> Tensor:
        return pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more // 2, self.more // 2))


class Block(nn.Module):
    """Conv-BN-ReLU-Conv-BN plus the shortcut; only akamaster's is followed by ReLU."""

    def __init__(self, channels: int, planes: int, stride: int, author: str) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, planes, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.relu_behind = author == "akamaster"
        self.shortcut: nn.Module = nn.Sequential()
        if (stride != 1 or channels != planes) and author == "akamaster":
            self.shortcut = PaddedShortcut(planes - channels)
        elif stride != 1 or channels != planes:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))) + self.shortcut(x)
        return torch.relu(out) if self.relu_behind else out


class ResNet20(nn.Module):
    """Three stages of three blocks, in the variant of akamaster or of karanchahal."""

    def __init__(self, author: str) -> None:
        super().__init__()
        self.akamaster = author == "akamaster"
        stem = 16 if self.akamaster else 64
        self.conv1 = nn.Conv2d(3, stem, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(stem)
        channels = stem
        for number, planes in enumerate(WIDTHS, 1):
            blocks = []
            for place in range(3):
                stride = 2 if place == 0 and number > 1 else 1
                blocks.append(Block(channels, planes, stride, author))
                channels = planes
            self.add_module(f"layer{number}", nn.Sequential(*blocks))
        self.linear = nn.Linear(64 if self.akamaster else 256, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = torch.relu(self.bn1(self.conv1(x)))
        for number in (1, 2, 3):
            out = self.get_submodule(f"layer{number}")(out)
            out = out if self.akamaster else torch.relu(out)
        size = out.shape[-1] if self.akamaster else 4
        out = nn.functional.avg_pool2d(out, size).flatten(1)
        logits: Tensor = self.linear(out)
        return logits


@dataclass(frozen=True)
class Published:
    """A published network, and how its training images were normalised."""

    author: str
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def load(self, file: Path) -> ResNet20:
        model = ResNet20(self.author)
        model.load_state_dict(load_file(file))
        return model.eval()


NETWORKS = {
    "akamaster": Published("akamaster", (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "karanchahal": Published("karanchahal", (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),
}
