"""Sparse training with the Hugging Face Trainer: python examples/huggingface_trainer.py"""

import tempfile
from typing import Any

import numpy
import torch
from transformers import ResNetConfig, ResNetForImageClassification, Trainer, TrainingArguments

import dafp
import dafp.data
from dafp.integrations.huggingface import SparsityCallback


def items(data: dafp.data.DataSet, part: str) -> list[dict[str, Any]]:
    x, y = next(data.batches(part, batch_size=data.sizes[part], augment=False))
    return [{"pixel_values": a, "labels": b} for a, b in zip(x, y, strict=True)]


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float(numpy.mean(prediction.predictions.argmax(1) == prediction.label_ids))}


def main() -> None:
    torch.manual_seed(0)
    data, example = dafp.data.load("digits"), {"pixel_values": torch.zeros(1, 3, 32, 32)}
    model = ResNetForImageClassification(ResNetConfig(
        embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic", num_labels=10,
    ))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=8, per_device_train_batch_size=32, learning_rate=5e-3,
            dataloader_drop_last=True, save_strategy="no", logging_strategy="no", report_to="none",
            disable_tqdm=True, use_cpu=True,
        )  # fmt: skip
        trainer = Trainer(
            model, arguments, train_dataset=items(data, "train"), eval_dataset=items(data, "test"),
            compute_metrics=accuracy,
        )  # fmt: skip
        sparsity = SparsityCallback(target=0.5, example=example, log=trainer.log)
        trainer.add_callback(sparsity)
        trainer.train()
        before = trainer.evaluate()

        plan = sparsity.plan()
        small = dafp.prune(model, sparsity.graph, plan)
        trainer.model = small
        after = trainer.evaluate()
    kept = sum(map(len, plan.keep.values()))
    print(f"before: accuracy {before['eval_accuracy']:.3f}, {sparsity.graph.filters} filters, "
          f"{dafp.cost(model, example)}")  # fmt: skip
    print(f"after: accuracy {after['eval_accuracy']:.3f}, {kept} filters, "
          f"{dafp.cost(small, example)}")  # fmt: skip


if __name__ == "__main__":
    main()
