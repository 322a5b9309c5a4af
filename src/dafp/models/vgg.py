"""VGG for CIFAR (one linear layer) and for ImageNet (three), with BN after every convolution."""

from torch import Tensor, nn

LAYOUTS: dict[int, tuple[int | str, ...]] = {
    11: (64, "M", 128, "M", 256, 256, "M", 512, 512, "M", 512, 512),
    13: (64, 64, "M", 128, 128, "M", 256, 256, "M", 512, 512, "M", 512, 512),
    16: (64, 64, "M", 128, 128, "M", 256, 256, 256, "M", 512, 512, 512, "M", 512, 512, 512),
    19: (64, 64, "M", 128, 128, "M", 256, 256, 256, 256, "M", 512, 512, 512, 512, "M",
         512, 512, 512, 512),
}  # fmt: skip


class VGG(nn.Module):
    """CIFAR VGG: 3×32×32 in, four max-pools, 2×2 average pool, one linear layer."""

    def __init__(self, depth: int = 16, *, classes: int = 10, width: float = 1.0) -> None:
        super().__init__()
        self.features, channels = _features(depth, width)
        vars(self)["_dafp_name"] = {"name": f"vgg{depth}", "classes": classes, "width": width}
        self.pool = nn.AvgPool2d(2)
        self.classifier = nn.Linear(channels, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.pool(self.features(x)).flatten(1))
        return out


class ImageNetVGG(nn.Module):
    """ImageNet VGG: 3×224×224 in, five max-pools, three linear layers with BN between them."""

    def __init__(self, depth: int = 11, *, classes: int = 1000, width: float = 1.0) -> None:
        super().__init__()
        self.features, channels = _features(depth, width)
        name = f"vgg{depth}-imagenet"
        vars(self)["_dafp_name"] = {"name": name, "classes": classes, "width": width}
        self.features.append(nn.MaxPool2d(2))
        hidden = _scaled(4096, width)
        self.classifier = nn.Sequential(
            nn.Linear(channels * 49, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, hidden),
            nn.BatchNorm1d(hidden),
            nn.ReLU(inplace=True),
            nn.Linear(hidden, classes),
        )
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.classifier(self.features(x).flatten(1))
        return out


def _features(depth: int, width: float) -> tuple[nn.Sequential, int]:
    layers: list[nn.Module] = []
    channels = 3
    for item in LAYOUTS[depth]:
        if isinstance(item, str):
            layers.append(nn.MaxPool2d(2))
            continue
        wide = _scaled(item, width)
        layers += [
            nn.Conv2d(channels, wide, 3, padding=1, bias=False),
            nn.BatchNorm2d(wide),
            nn.ReLU(inplace=True),
        ]
        channels = wide
    return nn.Sequential(*layers), channels


def _scaled(channels: int, width: float) -> int:
    return max(1, round(channels * width))


def initialise(model: nn.Module) -> None:
    """Convolutions N(0, √(2 / (k²·C_out))), linear layers N(0, .01), γ = 0.5 as in SLM's code."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        elif isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.01)
            nn.init.zeros_(module.bias)
        elif isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
            nn.init.constant_(module.weight, 0.5)
            nn.init.zeros_(module.bias)
