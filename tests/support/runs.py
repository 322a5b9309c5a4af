"""Directories of training runs as they are on disk, for tests of what reads them."""

import json
import math
from pathlib import Path
from typing import Any

CONFIG = """\
# one run of the pipeline
model = "vgg16"
width = 0.25
data = "digits"
batch_size = 64
seed = 0
method = "dafp"
target = 0.64
unit = "filters"
p = 0.01
step = "auto"
augment = true

[sparse]
epochs = 40

[finetune]
epochs = 30
lr = 0.1
milestones = [15, 23]
"""

WIDTHS = (
    (64, 41), (64, 58), (128, 101), (128, 117), (256, 196), (256, 171), (256, 142), (512, 208),
    (512, 131), (512, 96), (512, 74), (512, 69), (512, 118),
)  # fmt: skip
MAPS = (1024, 1024, 256, 256, 64, 64, 64, 16, 16, 16, 4, 4, 4)  # pixels of each layer's output


def metrics() -> list[dict[str, Any]]:
    """Baseline, sparse training and finetuning, with the bends that such curves have."""
    return [*_stage("baseline", 30, 0.972), *_sparse(40), *_stage("finetune", 30, 0.969, 0.04)]


def layers() -> list[dict[str, Any]]:
    found = []
    sizes = [(3, 3), *WIDTHS]
    for i, ((before, after), pixels) in enumerate(zip(WIDTHS, MAPS, strict=True)):
        old, new = 9 * sizes[i][0] * before, 9 * sizes[i][1] * after
        found.append({
            "name": f"features.{3 * i + i // 3}", "kind": "filter", "before": before,
            "after": after, "params_before": old + 2 * before, "params_after": new + 2 * after,
            "macs_before": old * pixels, "macs_after": new * pixels,
        })  # fmt: skip
    return found


def result() -> dict[str, Any]:
    parts = layers()
    filters, left = sum(w for w, _ in WIDTHS), sum(w for _, w in WIDTHS)
    big, small = (
        {"filters": f, "all_filters": f, "params": sum(x[f"params_{when}"] for x in parts),
         "macs": sum(x[f"macs_{when}"] for x in parts), "latency_s": latency}
        for f, when, latency in ((filters, "before", 0.0089), (left, "after", 0.0041))
    )  # fmt: skip
    return {
        "model": "vgg16", "data": "digits", "method": "dafp", "seed": 0,
        "stages": [
            {"stage": "baseline", "accuracy": 0.9722, "best_val_epoch": 27,
             "best_val_accuracy": 0.981, "best_val_test_accuracy": 0.975, **big},
            {"stage": "sparse", "accuracy": 0.9611, "best_val_epoch": None, **big},
            {"stage": "pruned", "accuracy": 0.9583, **small},
            {"stage": "finetuned", "accuracy": 0.9694, "best_val_epoch": 29,
             "best_val_accuracy": 0.978, "best_val_test_accuracy": 0.9667, **small},
        ],
        "sparsity": {"target": 0.64, "unit": "filters", "reached": 0.637, "p": 0.01,
                     "removed": 1 - left / filters,
                     "of_all_filters": 1 - left / filters, "forced": False},
        "layers": parts,
        "versions": {"dafp": "0.1.0", "torch": "2.13.0", "python": "3.11"},
        "machine": {"cpu": "a processor of two cores", "threads": 2},
    }  # fmt: skip


def plan() -> dict[str, Any]:
    parts = layers()
    return {
        "dafp_plan": 1, "spare": {}, "sizes": {x["name"]: x["before"] for x in parts},
        "keep": {x["name"]: list(range(x["after"])) for x in parts},
    }  # fmt: skip


def write_run(path: Path, **files: Any) -> Path:
    """A finished run; a file given as None is left out, as text or value it is replaced."""
    path.mkdir(parents=True, exist_ok=True)
    whole: dict[str, Any] = {
        "config": CONFIG, "metrics": metrics(), "result": result(), "plan": plan(), **files,
    }  # fmt: skip
    names = {"config": "config.toml", "metrics": "metrics.jsonl", "result": "result.json"}
    for key, value in whole.items():
        if value is None:
            continue
        if key == "metrics" and not isinstance(value, str):
            value = "".join(json.dumps(row) + "\n" for row in value)
        text = value if isinstance(value, str) else json.dumps(value)
        (path / names.get(key, f"{key}.json")).write_text(text, encoding="utf-8")
    return path


def _stage(name: str, epochs: int, best: float, climb: float = 0.75) -> list[dict[str, Any]]:
    rows = []
    for epoch in range(1, epochs + 1):
        lr = 0.1 * (0.1 if epoch > epochs / 2 else 1) * (0.1 if epoch > epochs * 0.75 else 1)
        calm = 1 if lr < 0.1 else 3
        wave = 0.006 * calm * math.sin(epoch * 2.4)
        test = best - climb * math.exp(-epoch / 3.2) - 0.02 * (calm == 3) + wave
        other = 0.004 * calm * math.cos(epoch * 1.7)
        rows.append({
            "stage": name, "epoch": epoch, "epochs": epochs, "lr": lr,
            "loss": 2.9 * climb * math.exp(-epoch / 4) + 0.02 + abs(wave),
            "train_accuracy": min(1.0, test + 0.02), "val_accuracy": test + 0.004 + other,
            "test_accuracy": test, "images": 1257,
            "val_loss": 2.8 * climb * math.exp(-epoch / 4.4) + 0.09 + abs(other),
            "epoch_s": 3.2,
        })  # fmt: skip
    return rows


def _sparse(epochs: int) -> list[dict[str, Any]]:
    rows = _stage("sparse", epochs, 0.961)
    for row in rows:
        share = row["epoch"] / epochs
        row["lr"] = 0.1
        row["penalty"] = 4e-4 * max(0.0, min(share * 2.2, 1.3 - share * 0.5))
        row["sparsity"] = 0.64 * share**1.25 + 0.012 * math.sin(row["epoch"] * 1.3) * (1 - share)
        row["target"], row["aim"] = 0.64, 0.64 * share
    return rows
