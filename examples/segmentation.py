"""Sparse training of a small U-Net with a loss per pixel: python examples/segmentation.py"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, max_pool2d, one_hot

import dafp


def draw(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Noisy images with a disc (class 1) and a square (class 2), and the class of every pixel."""
    chance = torch.Generator().manual_seed(seed)
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    a, b, c, d = (6 + 20 * torch.rand(4, count, 1, 1, generator=chance)).unbind()
    classes = ((x - a) ** 2 + (y - b) ** 2 < 36).long()
    classes[((x - c).abs() < 5) & ((y - d).abs() < 5)] = 2
    colours = torch.tensor([[0.0, 0, 0], [1, 0.5, 0], [0, 0.5, 1]])[classes].permute(0, 3, 1, 2)
    return colours + 0.7 * torch.randn(count, 3, 32, 32, generator=chance), classes


def _block(inputs: int, outputs: int) -> nn.Module:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs), nn.ReLU())


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = _block(3, 16), nn.Sequential(_block(16, 32), _block(32, 32))
        self.both, self.head = _block(48, 24), nn.Conv2d(24, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.fine(x)
        coarse = interpolate(self.coarse(max_pool2d(fine, 2)), scale_factor=2.0)
        return self.head(self.both(torch.cat([coarse, fine], 1)))


def main() -> None:
    torch.manual_seed(0)
    model, (images, truth) = UNet(), draw(200, seed=999)
    graph, optimizer = dafp.trace(model, images[:1]), torch.optim.AdamW(model.parameters(), 5e-3)
    sparse = dafp.SparseTraining(model, graph, optimizer, target=0.5, epochs=8)
    for step in range(8 * 24):
        x, classes = draw(16, seed=step)
        optimizer.zero_grad()
        cross_entropy(model(x), classes).backward()
        optimizer.step()
        if step % 24 == 23:
            print(f"sparsity {sparse.end_epoch().sparsity:.1%}")
    plan, true = sparse.plan(), one_hot(truth, 3).bool().flatten(0, 2)
    small, kept = dafp.prune(model, graph, plan), sum(map(len, plan.keep.values()))
    for name, net, filters in ("before", model, graph.filters), ("after", small, kept):
        found = one_hot(net.eval()(images).argmax(1), 3).bool().flatten(0, 2)
        iou = float(((found & true).sum(0) / (found | true).sum(0)).mean())
        print(f"{name}: mean IoU {iou:.3f}, {filters} filters, {dafp.cost(net, images[:1])}")


if __name__ == "__main__":
    main()
