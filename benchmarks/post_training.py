"""How much accuracy is left without training? dafp and Torch-Pruning at equal multiply-adds.

    .venv-zoo/bin/python benchmarks/post_training.py --root data --weights akamaster=FILE \\
        --weights karanchahal=FILE --weights vgg16=runs/vgg16/baseline.safetensors
    .venv-zoo/bin/python benchmarks/post_training.py --table    # only write docs/post-training.md

CIFAR-10, all 10,000 test images; 30, 50 and 70 % of the multiply-adds of the whole network removed.
Seeds 0-2 draw 1,000 training images, not augmented, as calibration data; labels are used by Taylor
and Hessian only. The importances of Torch-Pruning remove the same share of every layer, as its
pruners do by default. Measured is the accuracy as pruned, and with BN statistics recomputed from
2,000 augmented training images. Two networks are trained by others (`pretrained.py`), two by
`dafp run` with the files in benchmarks/configs. Rows: benchmarks/results/post_training.jsonl;
resumable, measured rows are skipped.
"""

import argparse
import json
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from criteria import accuracy, first, normalised, parser_for  # makes torchvision importable

import torch_pruning  # isort: skip

import dafp
from dafp.data import DataSet, load
from dafp.graph.channel_graph import ChannelGraph
from dafp.storage.revision import code_revision
from docpage import fill
from pretrained import NETWORKS
from result_files import FOLDER, append_rows, read_rows

RESULTS = FOLDER / "post_training.jsonl"
REMOVED, SEEDS, IMAGES = (0.3, 0.5, 0.7), (0, 1, 2), 1000
EXAMPLE = torch.zeros(1, 3, 32, 32)

Batches = list[tuple[Tensor, Tensor]]
Importance = Callable[[nn.Module, Batches], Any]


def _taylor(model: nn.Module, batches: Batches) -> Any:
    model.zero_grad()
    for x, y in batches:
        (cross_entropy(model(x), y) / len(batches)).backward()
    return torch_pruning.importance.TaylorImportance()


def _hessian(model: nn.Module, batches: Batches) -> Any:
    """OBD-C: the Fisher information of sampled labels, as in Torch-Pruning's own script.

    Its `_prepare_model` fails without attention layers (1.6.1), so its hooks are set here.
    """
    model.zero_grad()
    importance = torch_pruning.importance.OBDCImportance(num_classes=10)
    for layer in model.modules():
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            importance.modules.append(layer)
            layer.register_forward_pre_hook(importance._save_input)
            layer.register_full_backward_hook(importance._save_grad_output)
    torch.manual_seed(0)
    for x, _ in batches:
        logits = model(x)
        drawn = torch.multinomial(logits.detach().softmax(1), 1)[:, 0]
        cross_entropy(logits, drawn).backward()
        importance.step()
    importance._rm_hooks(model)
    return importance


PEERS: dict[str, Importance] = {
    "magnitude": lambda model, _: torch_pruning.importance.MagnitudeImportance(p=2),
    "BN scale": lambda model, _: torch_pruning.importance.BNScaleImportance(),
    "Taylor": _taylor,
    "Hessian": _hessian,
    "FPGM": lambda model, _: torch_pruning.importance.FPGMImportance(),
}
NEED_IMAGES = ("Taylor", "Hessian")
OURS, DATA_FREE = "dafp with data", "dafp without data"
UNIFORM = "dafp without data, the same share of every layer"
METHODS = (OURS, DATA_FREE, UNIFORM, *(f"Torch-Pruning {name}" for name in PEERS))


def peer_scores(
    model: nn.Module, graph: ChannelGraph, name: str, batches: Batches
) -> dict[str, Tensor]:
    """Torch-Pruning's importance of every filter that it can remove alone."""
    importance = PEERS[name](model, batches)
    known = torch_pruning.DependencyGraph().build_dependency(model, EXAMPLE)
    scores = {}
    for group in graph.groups:
        if group.kind == "filter":
            together = known.get_pruning_group(
                model.get_submodule(group.name),
                torch_pruning.prune_conv_out_channels,
                list(range(group.size)),
            )
            scores[group.name] = importance(together).detach().clamp(min=0)
    model.zero_grad()
    return scores


def pruned(model: nn.Module, method: str, removed: float, batches: Batches) -> nn.Module:
    """The network without this share of its multiply-adds."""
    if method == OURS:
        images = [x for x, _ in batches]
        return dafp.slim(model, EXAMPLE, removed, "macs", data=images, logits=True)
    if method in (DATA_FREE, UNIFORM):
        rule = dafp.selection.uniform if method == UNIFORM else None
        return dafp.slim(model, EXAMPLE, removed, "macs", rule=rule)
    graph = dafp.trace(model, EXAMPLE)
    scores = peer_scores(model, graph, method.removeprefix("Torch-Pruning "), batches)
    rule = dafp.selection.uniform
    return dafp.prune(model, graph, dafp.selection.to_target(scores, graph, removed, "macs", rule))


def load_network(
    name: str, file: Path, root: Path, val_share: float = 0
) -> tuple[nn.Module, DataSet]:
    """A network with its weights, and CIFAR-10 as it was normalised for it."""
    data = load("cifar10", root, val_share=val_share)
    if name in NETWORKS:
        published = NETWORKS[name]
        return published.load(file), normalised(data, published.mean, published.std)
    return dafp.load(file).eval(), data


def calibration_images(data: DataSet, seed: int) -> Batches:
    return first(data.batches("train", batch_size=200, seed=seed, augment=False), IMAGES // 200)


def run(weights: dict[str, Path], root: Path, seeds: Sequence[int]) -> None:
    code = code_revision(Path(dafp.__file__).parent, dafp.__version__)
    for seed in seeds:
        for name, file in weights.items():
            model, data = load_network(name, file, root)
            whole = accuracy(model, data)
            calibration = calibration_images(data, seed)
            fresh = first(data.batches("train", batch_size=200, seed=seed), 10)
            for removed in REMOVED:
                for method in METHODS:
                    if seed and method not in (OURS, *(f"Torch-Pruning {n}" for n in NEED_IMAGES)):
                        continue  # depends on the seed by recalibration only
                    key = {"net": name, "removed": removed, "method": method, "seed": seed}
                    if any(key.items() <= row.items() for row in read_rows(RESULTS)):
                        continue
                    started = time.process_time()
                    small = pruned(model, method, removed, calibration)
                    seconds = time.process_time() - started
                    plan = dafp.plan_of(small)
                    row = {
                        **key,
                        "whole": whole,
                        "as_cut": accuracy(small, data),
                        "macs_left": plan.after.macs / plan.before.macs,
                        "cpu_seconds": round(seconds, 1),
                        "widths": {name: len(kept) for name, kept in plan.keep.items()},
                        "revision": code,
                    }
                    row["recalibrated"] = accuracy(
                        dafp.recalibrate(small, [x for x, _ in fresh]), data
                    )
                    print(json.dumps({k: v for k, v in row.items() if k != "widths"}), flush=True)
                    append_rows(RESULTS, row)


def table() -> list[str]:
    """A line for each network and method, as cut / recalibrated for each share."""
    rows = read_rows(RESULTS)
    shares = " | ".join(f"{share:.0%} removed" for share in REMOVED)
    lines = [f"| network | method | {shares} |", "|---|---|" + "--:|" * len(REMOVED)]
    for net in dict.fromkeys(row["net"] for row in rows):
        mine = [row for row in rows if row["net"] == net]
        for method in METHODS:
            cells = [
                _cell([r for r in mine if r["method"] == method and r["removed"] == share])
                for share in REMOVED
            ]
            title = f"{net} ({100 * mine[0]['whole']:.2f})"
            lines.append(f"| {title} | {method} | " + " | ".join(cells) + " |")
    return lines


def _cell(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return "not run"
    columns = ("as_cut", "recalibrated")
    return " / ".join(_numbers([100 * row[key] for row in rows]) for key in columns)


def _numbers(values: list[float]) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


def main() -> None:
    parser: argparse.ArgumentParser = parser_for(__doc__)
    parser.add_argument("--table", action="store_true", help="only write docs/post-training.md")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seeds", type=int, nargs="*", default=SEEDS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")  # of Torch-Pruning's hooks
    if not options.table:
        run(dict(options.weights), options.root, options.seeds)
    fill("post-training.md", "post-training", ["", *table(), ""])


if __name__ == "__main__":
    main()
