"""What is left of networks with attention and LayerNorm: dafp and Torch-Pruning's recipes.

    .venv-zoo/bin/python benchmarks/attention.py
    .venv-zoo/bin/python benchmarks/attention.py --table    # only write docs/attention.md

A small ViT and a small ConvNeXt of timm are trained on the digits for a few minutes, and half of
their multiply-adds removed: by `dafp.slim` with 1,000 training images, and by the recipe that
Torch-Pruning has for ViT (`recipes.py`), with the ratio that leaves as many multiply-adds. The
recipe narrows everything, or with `bottleneck` only the inside of blocks. Accuracy on the 360 test
images, as cut and after three epochs of fine-tuning (AdamW, the best of three learning rates on the
validation images, for each method). "whole" is the network that nothing was removed from, trained
for the same three epochs. Rows: benchmarks/results/attention.jsonl; resumable, measured rows are
skipped.
"""

import argparse
import copy
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import OneCycleLR

import networks

SHIM = networks.shim_torchvision()

import torch_pruning  # noqa: E402
from timm.models.convnext import ConvNeXt  # noqa: E402
from timm.models.vision_transformer import VisionTransformer  # noqa: E402

import dafp  # noqa: E402
import recipes  # noqa: E402
from dafp.data import DataSet, load  # noqa: E402
from dafp.storage.revision import code_revision  # noqa: E402
from docpage import fill  # noqa: E402
from families import Subject  # noqa: E402
from result_files import FOLDER, append_rows, read_rows  # noqa: E402

RESULTS = FOLDER / "attention.jsonl"
REMOVED, SEEDS, IMAGES, BATCH = 0.5, (0, 1, 2), 1000, 64
EPOCHS, RATES = 3, (0.0001, 0.0003, 0.001)
EXAMPLE = torch.zeros(1, 3, 32, 32)
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, float]] = {
    # network, epochs and learning rate of its training
    "ViT": (lambda: VisionTransformer(img_size=32, patch_size=4, num_classes=10, embed_dim=96,
                                      depth=4, num_heads=4), 60, 0.002),
    "ConvNeXt": (lambda: ConvNeXt(num_classes=10, depths=(1, 1, 2, 1), dims=(24, 48, 96, 96),
                                  patch_size=2), 40, 0.004),
}  # fmt: skip

Batches = list[tuple[Tensor, Tensor]]
Method = Callable[[nn.Module, Batches], nn.Module]


def by_dafp(model: nn.Module, batches: Batches) -> nn.Module:
    images = [x for x, _ in batches]
    return dafp.slim(model, EXAMPLE, REMOVED, "macs", data=images, logits=True)


def by_torch_pruning(taylor: bool, bottleneck: bool) -> Method:
    def prune(model: nn.Module, batches: Batches) -> nn.Module:
        subject = Subject(model, (EXAMPLE,), ("head.fc" if hasattr(model, "stem") else "head",))
        importance = partial(_taylor, batches=batches) if taylor else recipes.magnitude
        return recipes.to_target(subject, REMOVED, importance, bottleneck)

    return prune


def _taylor(model: nn.Module, batches: Batches) -> Any:
    model.zero_grad()
    for x, y in batches:
        cross_entropy(model(x), y).backward()
    return torch_pruning.importance.TaylorImportance()


METHODS: dict[str, Method] = {
    "whole": lambda model, _: copy.deepcopy(model),
    "dafp with data": by_dafp,
    "Torch-Pruning magnitude": by_torch_pruning(taylor=False, bottleneck=False),
    "Torch-Pruning magnitude, bottleneck": by_torch_pruning(taylor=False, bottleneck=True),
    "Torch-Pruning Taylor": by_torch_pruning(taylor=True, bottleneck=False),
    "Torch-Pruning Taylor, bottleneck": by_torch_pruning(taylor=True, bottleneck=True),
}


def train(model: nn.Module, data: DataSet, seed: int, epochs: int, rate: float) -> None:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), rate, weight_decay=0.05)
    schedule = OneCycleLR(
        optimizer, rate, total_steps=epochs * data.steps("train", BATCH), pct_start=0.1
    )
    for epoch in range(1, epochs + 1):
        for x, y in data.batches("train", batch_size=BATCH, epoch=epoch, seed=seed):
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, data: DataSet, part: str = "test") -> float:
    batches = data.batches(part, batch_size=90)
    right = [(model(x).argmax(1) == y).double() for x, y in batches]
    return float(torch.cat(right).mean())


def trained(name: str, data: DataSet, seed: int, models: Path) -> nn.Module:
    """The network trained with this seed; its weights are kept in a file."""
    build, epochs, rate = NETWORKS[name]
    torch.manual_seed(seed)
    model, file = build(), models / f"{name}-{seed}.pt"
    if file.exists():
        model.load_state_dict(torch.load(file, weights_only=True))
        return model.eval()
    train(model, data, seed, epochs, rate)
    models.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), file)
    return model


def run(seeds: tuple[int, ...], models: Path) -> None:
    code = code_revision(Path(dafp.__file__).parent, dafp.__version__)
    data = load("digits", val_share=0.1)
    for seed in seeds:
        for name in NETWORKS:
            known = {(r["net"], r["method"], r["seed"]) for r in read_rows(RESULTS)}
            missing = [m for m in METHODS if (name, m, seed) not in known]
            model = trained(name, data, seed, models) if missing else None
            for method in missing:
                assert model is not None
                row = {"net": name, "method": method, "seed": seed, "removed": REMOVED,
                       **measure(model, data, seed, METHODS[method]), "revision": code}  # fmt: skip
                print(json.dumps(row), flush=True)
                append_rows(RESULTS, row)


def measure(model: nn.Module, data: DataSet, seed: int, method: Method) -> dict[str, Any]:
    """Multiply-adds left, and accuracy as cut and fine-tuned with the best rate."""
    batches = data.batches("train", batch_size=200, seed=seed, augment=False)
    calibration = [batch for _, batch in zip(range(IMAGES // 200), batches, strict=False)]
    small = method(model, calibration).eval()
    left = dafp.cost(small, EXAMPLE).macs / dafp.cost(model, EXAMPLE).macs
    row = {"whole": accuracy(model, data), "macs_left": left, "as_cut": accuracy(small, data)}
    tried = []
    for rate in RATES:
        tuned = copy.deepcopy(small)
        train(tuned, data, seed, EPOCHS, rate)
        tried.append(
            {"rate": rate, "val": accuracy(tuned, data, "val"), "finetuned": accuracy(tuned, data)}
        )
    return {**row, **max(tried, key=lambda found: found["val"])}


def table() -> list[str]:
    rows = read_rows(RESULTS)
    lines = ["| network | method | multiply-adds left | as cut | fine-tuned | seeds |",
             "|---|---|--:|--:|--:|--:|"]  # fmt: skip
    for net in NETWORKS:
        for method in METHODS:
            mine = [r for r in rows if (r["net"], r["method"]) == (net, method)]
            if mine:
                left = statistics.mean(r["macs_left"] for r in mine)
                cells = [_cell([r[key] for r in mine]) for key in ("as_cut", "finetuned")]
                lines.append(
                    f"| {net} | {method} | {left:.1%} | {' | '.join(cells)} | {len(mine)} |"
                )
    return lines


def _cell(values: list[float]) -> str:
    spread = f" ± {100 * statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * statistics.mean(values):.1f}{spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only write docs/attention.md")
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    parser.add_argument("--models", type=Path, default=Path("runs/attention"), help="weights")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        run(tuple(options.seeds), options.models)
    fill("attention.md", "trained", ["", *table(), ""])


if __name__ == "__main__":
    main()
