"""Sparse training with Accelerate and its checkpoints: python examples/accelerate_loop.py"""

import tempfile

import torch
from accelerate import Accelerator
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dafp
import dafp.data
import dafp.models

EPOCHS = 8


def loader(data: dafp.data.DataSet, part: str) -> DataLoader:
    images = next(data.batches(part, batch_size=data.sizes[part], augment=False))
    return DataLoader(TensorDataset(*images), 32, shuffle=part == "train")


@torch.no_grad()
def accuracy(model: nn.Module, batches: DataLoader) -> float:
    model.eval()
    return float(torch.cat([(model(x).argmax(1) == y).float() for x, y in batches]).mean())


def main() -> None:
    torch.manual_seed(0)
    accelerator, data = Accelerator(cpu=True), dafp.data.load("digits", images=800)
    model = dafp.models.build("vgg11", classes=10, width=0.125).to(accelerator.device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    example = torch.zeros(1, 3, 32, 32, device=accelerator.device)

    graph = dafp.trace(model, example)
    sparse = dafp.SparseTraining(model, graph, optimizer, target=0.5, epochs=EPOCHS)
    accelerator.register_for_checkpointing(sparse)  # save_state and load_state include it
    net, stepper, train = accelerator.prepare(model, optimizer, loader(data, "train"))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(EPOCHS):
            net.train()
            for x, y in train:
                accelerator.backward(cross_entropy(net(x), y))
                stepper.step()
                stepper.zero_grad()
            record = sparse.end_epoch()
            print(f"epoch {record.epoch}: sparsity {record.sparsity:.1%}")
            accelerator.save_state(folder)

    plan, test = sparse.plan(), accelerator.prepare(loader(data, "test"))
    small, kept = dafp.prune(model, graph, plan), sum(map(len, plan.keep.values()))
    for name, one, filters in ("before", model, graph.filters), ("after", small, kept):
        print(f"{name}: accuracy {accuracy(one, test):.3f}, {filters} filters, "
              f"{dafp.cost(one, example)}")  # fmt: skip


if __name__ == "__main__":
    main()
