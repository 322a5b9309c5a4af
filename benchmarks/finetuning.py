"""What is left after a few epochs of fine-tuning, and which schedule is best for them?

    .venv-zoo/bin/python benchmarks/finetuning.py compare --root data --weights akamaster=FILE …
    .venv-zoo/bin/python benchmarks/finetuning.py schedule --root data --weights vgg16=FILE
    .venv-zoo/bin/python benchmarks/finetuning.py --table     # only write docs/post-training.md

CIFAR-10: 45,000 images to train, 5,000 to choose the learning rate, all 10,000 test images. Trained
in bf16 (autocast), judged in float32.

compare: three epochs (SGD, cosine from the rate to 0) after pruning by dafp with data, and by the
two importances of Torch-Pruning that are best after recalibration (results of post_training.py), at
equal multiply-adds. The rate of each network and method is the best of three on the validation
images, at half of the multiply-adds and seed 0. 50 % removed has seeds 0-2, 30 and 70 % seed 0.

schedule: the network that dafp pruned to half of its multiply-adds; 1, 3 and 10 epochs with other
rates, shapes, warm-up, and the original as teacher.

Rows: benchmarks/results/finetuning.jsonl; resumable, measured rows are skipped.
"""

import json
import statistics
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy

import dafp
from criteria import accuracy, parser_for  # makes torchvision importable
from dafp.data import DataSet
from dafp.storage.revision import code_revision
from dafp.training.config import Schedule
from dafp.training.distillation import distillation_loss
from dafp.training.loop import learning_rate
from docpage import fill
from post_training import METHODS, OURS, calibration_images, load_network, pruned
from post_training import RESULTS as POST_TRAINING
from result_files import FOLDER, append_rows, read_rows

RESULTS = FOLDER / "finetuning.jsonl"
RATES, EPOCHS, BATCH, TEMPERATURE = (0.003, 0.01, 0.03), 3, 128, 4.0
CELLS = ((0.5, 0), (0.5, 1), (0.5, 2), (0.3, 0), (0.7, 0))  # share removed, seed
PLAIN = {"shape": "cosine", "warmup": 0.0, "distill": 0.0}
STUDY = [
    {"epochs": epochs, "rate": rate, **PLAIN, **change}
    for epochs, rates in ((1, (0.001, 0.003, 0.01, 0.03)), (3, (0.003, 0.01, 0.03, 0.1)),
                          (10, (0.01, 0.03, 0.1)))
    for rate in rates
    for change in ({}, {"distill": 0.7})
] + [
    {"epochs": epochs, "rate": rate, **PLAIN, **change}
    for epochs, rate in ((1, 0.01), (3, 0.03))
    for change in ({"warmup": 0.1}, {"shape": "steps"}, {"distill": 0.9}, {"distill": 1.0})
]  # fmt: skip


def finetune(
    model: nn.Module, data: DataSet, seed: int, setting: dict[str, Any], teacher: nn.Module
) -> None:
    """Train in place; `shape` "steps" is a constant rate here."""
    model.to(memory_format=torch.channels_last).train()
    teacher.to(memory_format=torch.channels_last).eval()
    schedule = Schedule(
        setting["epochs"], setting["rate"], (), shape=setting["shape"], warmup=setting["warmup"]
    )
    optimizer = torch.optim.SGD(model.parameters(), schedule.lr, 0.9, weight_decay=1e-4)
    steps = data.steps("train", BATCH)
    for epoch in range(1, schedule.epochs + 1):
        batches = data.batches("train", batch_size=BATCH, epoch=epoch, seed=seed)
        for step, (x, y) in enumerate(batches):
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(schedule, epoch, step, steps)
            with torch.autocast("cpu", torch.bfloat16):
                out = model(x).float()
            if setting["distill"]:
                with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
                    logits = teacher(x).float()
                loss = distillation_loss(out, y, logits, setting["distill"], TEMPERATURE)
            else:
                loss = cross_entropy(out, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Bench:
    """One network: its data, and what was pruned from it."""

    def __init__(self, name: str, file: Path, root: Path, models: Path) -> None:
        self.name, self.models = name, models
        self.model, self.data = load_network(name, file, root, val_share=0.1)
        self.code = code_revision(Path(dafp.__file__).parent, dafp.__version__)

    def pruned(self, removed: float, method: str, seed: int) -> nn.Module:
        """The pruned network; it is kept in a file, because several rows start from it."""
        file = self.models / f"{self.name}-{removed}-{method}-{seed}.safetensors".replace(" ", "-")
        if not file.exists():
            images = calibration_images(self.data, seed)
            file.parent.mkdir(parents=True, exist_ok=True)
            dafp.save(pruned(self.model, method, removed, images), file)
        return dafp.load(file, self.model)

    def row(
        self, kind: str, removed: float, method: str, seed: int, setting: dict[str, Any]
    ) -> Any:
        """The row of these values; measured unless it is there."""
        key = {
            "kind": kind, "net": self.name, "removed": removed, "method": method, "seed": seed,
            **setting, "precision": "bf16",
        }  # fmt: skip
        known = [row for row in read_rows(RESULTS) if key.items() <= row.items()]
        if known:
            return known[0]
        small = self.pruned(removed, method, seed)
        finetune(small, self.data, seed, setting, self.model)
        row = {
            **key, "val": accuracy(small, self.data, "val"), "test": accuracy(small, self.data),
            "revision": self.code,
        }  # fmt: skip
        print(json.dumps(row), flush=True)
        append_rows(RESULTS, row)
        return row


def peers_of(net: str) -> list[str]:
    """The two importances of Torch-Pruning with the best accuracy after recalibration."""
    found: dict[str, list[float]] = {}
    for row in read_rows(POST_TRAINING):
        if (row["net"], row["removed"]) == (net, 0.5) and row["method"].startswith("Torch"):
            found.setdefault(row["method"], []).append(row["recalibrated"])
    return sorted(found, key=lambda method: -statistics.mean(found[method]))[:2]


def compare(bench: Bench) -> None:
    best: dict[str, float] = {}
    methods = [OURS, *peers_of(bench.name)]
    for method in methods:
        rows = [
            bench.row("compare", 0.5, method, 0, {"epochs": EPOCHS, "rate": rate, **PLAIN})
            for rate in RATES
        ]
        best[method] = max(rows, key=lambda row: row["val"])["rate"]
    for removed, seed in CELLS[1:]:
        for method in methods:
            setting = {"epochs": EPOCHS, "rate": best[method], **PLAIN}
            bench.row("compare", removed, method, seed, setting)


def schedule(bench: Bench) -> None:
    for setting in STUDY:
        bench.row("schedule", 0.5, OURS, 0, setting)


def comparison_table() -> list[str]:
    lines = ["| network | method | rate | 30% removed | 50% removed | 70% removed |",
             "|---|---|--:|--:|--:|--:|"]  # fmt: skip
    rows = [row for row in read_rows(RESULTS) if row["kind"] == "compare"]
    for net in dict.fromkeys(row["net"] for row in rows):
        mine = [row for row in rows if row["net"] == net]
        for method in (m for m in METHODS if any(row["method"] == m for row in mine)):
            tried = [row for row in mine if row["method"] == method]
            half = [r for r in tried if (r["removed"], r["seed"]) == (0.5, 0)]
            if len({row["rate"] for row in half}) < len(RATES):
                continue  # the best rate is not known yet
            rate = max(half, key=lambda row: row["val"])["rate"]
            cells = [
                _cell([r["test"] for r in tried if (r["removed"], r["rate"]) == (share, rate)])
                for share in (0.3, 0.5, 0.7)
            ]
            lines.append(f"| {net} | {method} | {rate} | " + " | ".join(cells) + " |")
    return lines


def schedule_table() -> list[str]:
    heading = (
        "| precision | epochs | rate | shape | warm-up | teacher's share | validation | test |"
    )
    lines = [heading, "|---|--:|--:|---|--:|--:|--:|--:|"]
    rows = [row for row in read_rows(RESULTS) if row["kind"] == "schedule"]
    by_training = ("float32", "bf16")
    for row in sorted(
        rows, key=lambda r: (by_training.index(_precision(r)), r["epochs"], -r["val"])
    ):
        shape = "constant" if row["shape"] == "steps" else row["shape"]
        lines.append(
            f"| {_precision(row)} | {row['epochs']} | {row['rate']} | {shape} "
            f"| {row['warmup']:.0%} | {row['distill']:.0%} "
            f"| {100 * row['val']:.2f} | {100 * row['test']:.2f} |"
        )
    return lines


def _precision(row: dict[str, Any]) -> str:
    """The first rows do not state it."""
    return str(row.get("precision", "float32"))


def _cell(values: list[float]) -> str:
    if not values:
        return "not run"
    spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.2f}{spread}"


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("what", nargs="?", choices=("compare", "schedule"))
    parser.add_argument("--table", action="store_true", help="only write docs/post-training.md")
    parser.add_argument("--models", type=Path, default=Path("runs/pruned"), help="pruned networks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        for name, file in options.weights:
            bench = Bench(name, file, options.root, options.models)
            (compare if options.what == "compare" else schedule)(bench)
    fill("post-training.md", "fine-tuning", ["", *comparison_table(), ""])
    fill("post-training.md", "schedule", ["", *schedule_table(), ""])


if __name__ == "__main__":
    main()
