"""Sparse training with a Lightning callback, then pruning: python examples/lightning_callback.py"""

import lightning
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import dafp
import dafp.data
import dafp.models
from dafp.integrations.lightning import SparsityCallback


class Digits(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.net = dafp.models.build("vgg11", classes=10, width=0.125)

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)

    def training_step(self, batch: tuple[Tensor, Tensor], index: int) -> Tensor:
        return cross_entropy(self(batch[0]), batch[1])

    def test_step(self, batch: tuple[Tensor, Tensor], index: int) -> None:
        self.log("accuracy", (self(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)


def loader(data: dafp.data.DataSet, part: str) -> DataLoader:
    images = next(data.batches(part, batch_size=data.sizes[part], augment=False))
    return DataLoader(TensorDataset(*images), 32, shuffle=part == "train")


def main() -> None:
    torch.manual_seed(0)
    data, model = dafp.data.load("digits", images=800), Digits()
    example = torch.zeros(1, 3, 32, 32)
    sparsity = SparsityCallback(target=0.5, example=example)
    trainer = lightning.Trainer(
        max_epochs=8, callbacks=[sparsity], accelerator="cpu", logger=False,
        enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(model, loader(data, "train"))
    print("sparsity", *(f"{record.sparsity:.1%}" for record in sparsity.records))
    graph, plan = sparsity.graph, sparsity.plan()
    small, kept = dafp.prune(model, graph, plan), sum(map(len, plan.keep.values()))
    for name, net, filters in ("before", model, graph.filters), ("after", small, kept):
        (result,) = trainer.test(net, loader(data, "test"), verbose=False)
        print(f"{name}: accuracy {result['accuracy']:.3f}, {filters} filters, "
              f"{dafp.cost(net, example)}")  # fmt: skip


if __name__ == "__main__":
    main()
