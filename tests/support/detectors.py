"""Tiny detectors: their work, and the shapes of what they return, depend on the data."""

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

CLASSES = 3
ANCHORS = 2
Target = dict[str, Tensor]


def block(inputs: int, outputs: int, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


def flat(x: Tensor, size: int) -> Tensor:
    """(N, A·size, H, W) → (N, H·W·A, size), as detection heads do."""
    rows, _, height, width = x.shape
    x = x.view(rows, -1, size, height, width).permute(0, 3, 4, 1, 2)
    return x.reshape(rows, -1, size)


def not_overlapping(boxes: Tensor, scores: Tensor, most: float) -> Tensor:
    """Non-maximum suppression: the positions of boxes, best first."""
    order, kept = scores.argsort(descending=True), []
    while len(order):
        best, order = order[0], order[1:]
        kept.append(best)
        first, last = torch.max(boxes[best, :2], boxes[order, :2]), boxes[order, 2:]
        shared = (torch.min(boxes[best, 2:], last) - first).clamp(min=0).prod(1)
        order = order[shared <= most * (boxes[order, 2:] - boxes[order, :2]).prod(1)]
    return torch.stack(kept)


class Pyramid(nn.Module):
    """Two levels of features of the same width."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.deep = block(3, 8, 2), block(8, 12, 2)
        self.near, self.far = nn.Conv2d(8, 10, 1), nn.Conv2d(12, 10, 1)

    def forward(self, images: list[Tensor]) -> list[Tensor]:
        side = max(max(image.shape[1:]) for image in images)
        batch = images[0].new_zeros(len(images), 3, side, side)
        for place, image in zip(batch, images, strict=True):
            place[:, : image.shape[1], : image.shape[2]].copy_(image)
        stem = self.stem(batch)
        deep = self.far(self.deep(stem))
        return [self.near(stem) + F.interpolate(deep, scale_factor=2.0), deep]


class OneStage(nn.Module):
    """Shared head convolutions over the levels; threshold, topk and suppression choose boxes.

    In eval mode it returns one dictionary per image, in train mode, with targets, a loss.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pyramid = Pyramid()
        self.head = block(10, 14)
        self.scores = nn.Conv2d(14, ANCHORS * CLASSES, 3, padding=1)
        self.boxes = nn.Conv2d(14, ANCHORS * 4, 3, padding=1)

    def forward(self, images: list[Tensor], targets: list[Target] | None = None) -> object:
        heads = [self.head(level) for level in self.pyramid(images)]
        scores = torch.cat([flat(self.scores(x), CLASSES) for x in heads], 1)
        boxes = torch.cat([flat(self.boxes(x), 4) for x in heads], 1)
        number = torch.arange(boxes.shape[1])
        first = boxes[..., :2] + torch.stack([number % 16, number // 16], 1)
        boxes = torch.cat([first, first + boxes[..., 2:].exp()], -1)
        if self.training:
            assert targets is not None, "targets should not be none when in training mode"
            return self.loss(scores, boxes, targets)
        return [self.detections(s, b) for s, b in zip(scores, boxes, strict=True)]

    def loss(self, scores: Tensor, boxes: Tensor, targets: list[Target]) -> Tensor:
        total = scores.sum() * 0
        for s, b, target in zip(scores, boxes, targets, strict=True):
            nearest = torch.cdist(target["boxes"], b.detach()).argmin(1)
            negative = torch.where(s.detach().sigmoid().max(1).values > 0.2)[0]
            some = negative[torch.randperm(len(negative))[:4]]
            total = total + F.l1_loss(b[nearest], target["boxes"])
            total = total + F.cross_entropy(s[nearest], target["labels"]) + s[some].sigmoid().mean()
        return total

    def detections(self, scores: Tensor, boxes: Tensor) -> Target:
        sure = scores.sigmoid().flatten()
        chosen = torch.where(sure > 0.3)[0]
        best, order = sure[chosen].topk(min(40, len(chosen)))
        chosen = chosen[order]
        own = boxes[chosen // CLASSES]
        kept = not_overlapping(own, best, 0.5)
        return {"boxes": own[kept], "scores": best[kept], "labels": (chosen % CLASSES)[kept]}


class TwoStage(nn.Module):
    """Boxes of the first stage are cut out of the level that fits their size, and classified."""

    def __init__(self) -> None:
        super().__init__()
        self.pyramid = Pyramid()
        self.objects = nn.Conv2d(10, 1, 1)
        self.hidden = nn.Linear(10 * 4, 16)
        self.classes = nn.Linear(16, CLASSES)

    def forward(self, images: list[Tensor]) -> list[Tensor]:
        levels = self.pyramid(images)
        scores = self.objects(levels[0]).flatten(1).sigmoid()
        image, place = torch.where(scores > scores.mean())
        level = (scores[image, place] > 0.6).long()
        x = self.cut(levels, image, place, level)
        x = self.classes(F.relu(self.hidden(x.flatten(1))))
        return [x.softmax(1), image]

    def cut(self, levels: list[Tensor], image: Tensor, place: Tensor, level: Tensor) -> Tensor:
        width = levels[0].shape[1]
        out = levels[0].new_zeros(len(image), width, 2, 2)
        for number, features in enumerate(levels):
            here = torch.where(level == number)[0]
            side = features.shape[-1]
            row = (place[here] // levels[0].shape[-1]).clamp(max=side - 2)[:, None] + torch.arange(
                2
            )
            column = (place[here] % side).clamp(max=side - 2)[:, None] + torch.arange(2)
            out[here] = features[
                image[here][:, None, None, None],
                torch.arange(width)[None, :, None, None],
                row[:, None, :, None],
                column[:, None, None, :],
            ]
        return out


def build(kind: type[nn.Module]) -> nn.Module:
    """A detector with random weights and statistics, in eval mode."""
    with torch.random.fork_rng([]):
        torch.manual_seed(0)
        model = kind()
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                nn.init.uniform_(module.weight, 0.5, 1.5)
                nn.init.normal_(module.bias, std=0.3)
                nn.init.normal_(module.running_mean, std=0.1)
    return model.eval()


def images() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(3, *size, generator=generator) for size in ((16, 16), (12, 16))]


def targets() -> list[Target]:
    boxes = torch.tensor([[1.0, 1.0, 6.0, 7.0], [4.0, 3.0, 11.0, 10.0]])
    return [{"boxes": boxes + k, "labels": torch.tensor([1, 2 - k])} for k in range(2)]
