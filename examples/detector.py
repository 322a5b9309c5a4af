"""Sparse training of a one-stage detector with two losses: python examples/detector.py"""

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, smooth_l1_loss

import dafp


def draw(count: int, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images of a bar or a block; cell of its centre (of 8×8), box (position, log size), class."""
    chance = torch.Generator().manual_seed(seed)
    kind = torch.randint(2, (count,), generator=chance)
    sides = torch.tensor([[6.0, 22.0], [14.0, 14.0]])[kind]
    sides = sides * (0.8 + 0.4 * torch.rand(count, 1, generator=chance))
    centre = 12 + 40 * torch.rand(count, 2, generator=chance)
    grid = torch.stack(torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="xy"))
    inside = (grid - centre[:, :, None, None]).abs() < sides[:, :, None, None] / 2
    images = inside.all(1, keepdim=True) + 0.4 * torch.randn(count, 3, 64, 64, generator=chance)
    x, y = (centre / 8).floor().long().unbind(1)
    return images, 8 * y + x, torch.cat([centre / 8 % 1, (sides / 8).log()], 1), kind


def network() -> nn.Module:
    layers: list[nn.Module] = []
    for a, b, stride in (3, 16, 2), (16, 32, 2), (32, 64, 2), (64, 64, 1):
        layers += [nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(64, 1 + 4 + 2, 1), nn.Flatten(2))


def losses(out: Tensor, cell: Tensor, box: Tensor, kind: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Losses of the cell of the centre, and of the box and class that this cell predicts."""
    here = out[torch.arange(len(out)), :, cell]
    found, place = cross_entropy(out[:, 0], cell), smooth_l1_loss(here[:, 1:5], box)
    return found, place, cross_entropy(here[:, 5:], kind)


def main() -> None:
    torch.manual_seed(0)
    model, (images, *truth) = network(), draw(200, seed=999)
    graph, optimizer = dafp.trace(model, images[:1]), torch.optim.AdamW(model.parameters(), 3e-3)
    sparse = dafp.SparseTraining(model, graph, optimizer, target=0.5, epochs=8)
    for step in range(8 * 24):
        x, *targets = draw(16, seed=step)
        optimizer.zero_grad()
        sum(losses(model(x), *targets)).backward()
        optimizer.step()
        if step % 24 == 23:
            print(f"sparsity {sparse.end_epoch().sparsity:.1%}")
    small, plan = dafp.prune(model, graph, sparse.plan()), sparse.plan()
    for name, net in ("before", model), ("after", small):
        cell, box, kind = (float(v.detach()) for v in losses(net.eval()(images), *truth))
        filters = graph.filters if net is model else sum(map(len, plan.keep.values()))
        print(f"{name}: loss {cell + box + kind:.3f} (cell {cell:.3f}, box {box:.3f}, class "
              f"{kind:.3f}), {filters} filters, {dafp.cost(net, images[:1])}")  # fmt: skip


if __name__ == "__main__":
    main()
