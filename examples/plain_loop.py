"""Sparse training and pruning in a plain PyTorch loop: python examples/plain_loop.py"""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dafp
import dafp.data

EPOCHS = 10


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, 2, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip


@torch.no_grad()
def accuracy(model: nn.Module, data: dafp.data.DataSet) -> float:
    model.eval()
    right = [(model(x).argmax(1) == y) for x, y in data.batches("test", batch_size=128)]
    return float(torch.cat(right).float().mean())


def main() -> None:
    torch.manual_seed(0)
    data = dafp.data.load("digits")
    model, example = network(), torch.zeros(1, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)

    graph = dafp.trace(model, example)
    sparse = dafp.SparseTraining(model, graph, optimizer, target=0.5, epochs=EPOCHS)
    for epoch in range(EPOCHS):
        model.train()
        for x, y in data.batches("train", batch_size=32, epoch=epoch, augment=False):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
        record = sparse.end_epoch()
        print(f"epoch {record.epoch}: λ {record.penalty:.2e}, sparsity {record.sparsity:.1%}")

    plan = sparse.plan()
    small = dafp.prune(model, graph, plan)
    kept = sum(map(len, plan.keep.values()))
    print(f"before: accuracy {accuracy(model, data):.3f}, {graph.filters} filters, "
          f"{dafp.cost(model, example)}")  # fmt: skip
    print(f"after: accuracy {accuracy(small, data):.3f}, {kept} filters, "
          f"{dafp.cost(small, example)}")  # fmt: skip


if __name__ == "__main__":
    main()
