"""A timm network with its weights file, pruned and fine-tuned: python examples/timm_weights.py"""

import tempfile
from pathlib import Path

import timm
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy

import dafp
import dafp.data

NAME, EXAMPLE = "test_resnet", torch.zeros(1, 3, 32, 32)


def train(model: nn.Module, data: dafp.data.DataSet, epochs: int, lr: float) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), lr)
    model.train()
    for epoch in range(epochs):
        for x, y in data.batches("train", batch_size=32, epoch=epoch, augment=False):
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
    return model


@torch.no_grad()
def show(name: str, model: nn.Module, data: dafp.data.DataSet) -> None:
    model.eval()
    right = [(model(x).argmax(1) == y).float() for x, y in data.batches("test", batch_size=128)]
    filters = dafp.trace(model, EXAMPLE).filters  # the prunable ones: residual streams stay whole
    print(f"{name}: accuracy {float(torch.cat(right).mean()):.3f}, {filters} filters, "
          f"{dafp.cost(model, EXAMPLE)}")  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    data = dafp.data.load("digits")
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "mine.safetensors"  # your own file; trained here for the example
        trained = train(timm.create_model(NAME, num_classes=10), data, 4, 3e-3)
        save_file(trained.state_dict(), weights)

        model = timm.create_model(NAME, num_classes=10)
        model.load_state_dict(load_file(weights))
        show("before", model, data)
        small = dafp.slim(model, EXAMPLE, ratio=0.5)
        show("pruned", small, data)
        dafp.save(train(small, data, 3, 1e-3), Path(folder) / "small.safetensors")
        fresh = timm.create_model(NAME, num_classes=10)  # load prunes it by the plan in the file
        show("after", dafp.load(Path(folder) / "small.safetensors", fresh), data)


if __name__ == "__main__":
    main()
