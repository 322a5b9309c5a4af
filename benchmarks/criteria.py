"""Which filters to remove? dafp's criteria beside Torch-Pruning's, on networks trained by others.

    .venv-zoo/bin/python benchmarks/criteria.py --root data --weights akamaster=FILE \\
        --weights karanchahal=FILE                      # resumable: rows that are there are kept
    .venv-zoo/bin/python benchmarks/criteria.py --table     # the table of docs/benchmarks.md

CIFAR-10, all 10,000 test images. One shot: 30 or 50 % of the inner filters of every block, the same
number in every layer for all, so that criteria differ in nothing but their choice. Before
finetuning: as cut, with the mean of removed channels given back (compensate), with BN statistics
taken anew from 2,000 augmented training images (recalibrate); then three epochs of finetuning, from
lr 0.01 along a cosine to 0: a constant 0.01 takes 2.6 points even from a network that nothing was
removed from, more than criteria differ by. Seeds 0-2 draw the images of recalibration, Taylor and
the measured shift_aware, and the order of finetuning. A row names the precision of its finetuning:
where bfloat16 stands, it was autocast. docs/benchmarks.md tells of rows that name Winograd.
"""

import argparse
import dataclasses
import itertools
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import networks

SHIM = networks.shim_torchvision()

import torch_pruning  # noqa: E402

import dafp  # noqa: E402
from dafp.data import DataSet, load  # noqa: E402
from dafp.data.in_memory import Images  # noqa: E402
from dafp.graph.channel_graph import ChannelGraph  # noqa: E402
from dafp.graph.plan import PruningPlan  # noqa: E402
from docpage import fill  # noqa: E402
from pretrained import NETWORKS  # noqa: E402

RESULTS = Path(__file__).parent / "results" / "criteria.jsonl"
RATIOS, SEEDS, EPOCHS, RATE, BATCH = (0.3, 0.5), (0, 1, 2), 3, 0.01, 128
COLUMNS = ("plain", "compensate", "recalibrate", "finetuned")

Scores = dict[str, Tensor]
Batches = list[tuple[Tensor, Tensor]]


def magnitude(model: nn.Module, graph: ChannelGraph, batches: Batches) -> Scores:
    return _peer(model, graph, torch_pruning.importance.MagnitudeImportance(p=2))


def bn_scale(model: nn.Module, graph: ChannelGraph, batches: Batches) -> Scores:
    return _peer(model, graph, torch_pruning.importance.BNScaleImportance())


def taylor(model: nn.Module, graph: ChannelGraph, batches: Batches) -> Scores:
    model.zero_grad()
    for x, y in batches:
        (cross_entropy(model(x), y) / len(batches)).backward()
    scores = _peer(model, graph, torch_pruning.importance.TaylorImportance())
    model.zero_grad()
    return scores


def dependency_aware(model: nn.Module, graph: ChannelGraph, batches: Batches) -> Scores:
    return dafp.criteria.dependency_aware(model, graph)


def shift_aware(model: nn.Module, graph: ChannelGraph, batches: Batches) -> Scores:
    return dafp.criteria.shift_aware(model, graph)


def measured(model: nn.Module, graph: ChannelGraph, batches: Batches) -> Scores:
    return dafp.criteria.shift_aware(model, graph, batches)


CRITERIA: dict[str, Callable[[nn.Module, ChannelGraph, Batches], Scores]] = {
    "Torch-Pruning magnitude": magnitude, "Torch-Pruning BN scale": bn_scale,
    "Torch-Pruning Taylor": taylor, "dafp dependency_aware": dependency_aware,
    "dafp shift_aware": shift_aware, "dafp shift_aware, measured": measured,
}  # fmt: skip
NOTHING = "–"  # removed: what the three epochs alone do
CUTS = list(itertools.product(RATIOS, CRITERIA))


def _peer(model: nn.Module, graph: ChannelGraph, importance: Any) -> Scores:
    """Torch-Pruning's importance of every filter, by its own dependency graph."""
    known = torch_pruning.DependencyGraph().build_dependency(model, torch.zeros(1, 3, 32, 32))
    scores = {}
    for group in graph.groups:
        layer = model.get_submodule(group.name)
        together = known.get_pruning_group(
            layer, torch_pruning.prune_conv_out_channels, list(range(group.size))
        )
        scores[group.name] = importance(together).detach()
    return scores


def trace_inner(model: nn.Module) -> ChannelGraph:
    """Only the filters between the two convolutions of a block."""
    example = torch.zeros(1, 3, 32, 32)
    outer = [g.name for g in dafp.trace(model, example).groups if "layer" not in g.name]
    graph = dafp.trace(model, example, keep=outer)
    assert all(g.name.endswith(".conv1") for g in graph.groups)
    return graph


def measure(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, data: DataSet, seed: int
) -> dict[str, float]:
    """After recalibration and after finetuning, which the seed has a part in."""
    images = first(data.batches("train", batch_size=200, seed=seed), 10)
    anew = dafp.recalibrate(dafp.prune(model, graph, plan), [x for x, _ in images])
    row = {"recalibrate": accuracy(anew, data)}
    finetune(anew, data, seed)
    return {**row, "finetuned": accuracy(anew, data)}


def as_cut(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, data: DataSet
) -> dict[str, float]:
    """Without data: the same for every seed that leads to this plan."""
    return {
        "plain": accuracy(dafp.prune(model, graph, plan), data),
        "compensate": accuracy(dafp.prune(model, graph, plan, compensate=True), data),
    }


def finetune(model: nn.Module, data: DataSet, seed: int) -> None:
    model.to(memory_format=torch.channels_last).train()
    optimizer = torch.optim.SGD(model.parameters(), RATE, 0.9, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, EPOCHS * data.steps("train", BATCH)
    )
    for epoch in range(EPOCHS):
        for x, y in data.batches("train", batch_size=BATCH, epoch=epoch, seed=seed):
            loss = cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()


@torch.no_grad()
def accuracy(model: nn.Module, data: DataSet) -> float:
    model.to(memory_format=torch.channels_last).eval()
    right = [(model(x).argmax(1) == y).double() for x, y in data.batches("test", batch_size=BATCH)]
    return float(torch.cat(right).mean())


def shown_as(data: DataSet, mean: Any, std: Any) -> DataSet:
    """The same images, normalised as the network has learnt them."""
    parts = {}
    for name, part in data.parts.items():
        assert isinstance(part, Images)
        parts[name] = dataclasses.replace(part, mean=mean, std=std)
    return dataclasses.replace(data, mean=mean, std=std, parts=parts)


def first(batches: Iterator[tuple[Tensor, Tensor]], count: int) -> Batches:
    return [batch for _, batch in zip(range(count), batches, strict=False)]


def rows() -> list[dict[str, Any]]:
    if not RESULTS.exists():
        return []
    return [json.loads(line) for line in RESULTS.read_text().splitlines()]


def run(weights: dict[str, Path], root: Path) -> None:
    cut: dict[tuple[str, str], dict[str, float]] = {}
    whole: dict[str, float] = {}
    for seed in SEEDS:
        for name, file in weights.items():
            published = NETWORKS[name]
            data = shown_as(load("cifar10", root, val_share=0), published.mean, published.std)
            if name not in whole:
                whole[name] = accuracy(published.load(file), data)
            for ratio, criterion in CUTS if seed else [*CUTS, (0.0, NOTHING)]:
                key = {"net": name, "ratio": ratio, "criterion": criterion, "seed": seed}
                if any(key.items() <= row.items() for row in rows()):
                    continue
                model = published.load(file)
                graph = trace_inner(model)
                batches = first(data.batches("train", batch_size=200, seed=seed, augment=False), 10)
                plan = PruningPlan({})
                if criterion != NOTHING:
                    scores = CRITERIA[criterion](model, graph, batches)
                    plan = dafp.selection.uniform(scores, ratio)
                same = (name, plan.to_json())
                if same not in cut:
                    cut[same] = as_cut(model, graph, plan, data)
                row = {**key, "precision": "float32", "whole": whole[name], **cut[same]}
                row |= measure(model, graph, plan, data, seed)
                print(json.dumps(row), flush=True)
                with RESULTS.open("a") as out:
                    out.write(json.dumps(row) + "\n")


def table() -> list[str]:
    """Mean ± standard deviation over seeds, a line for each network, ratio and criterion."""
    known: dict[tuple[str, float], dict[str, list[dict[str, Any]]]] = {}
    for row in rows():
        cut = known.setdefault((row["net"], row["ratio"]), {})
        cut.setdefault(row["criterion"], []).append(row)
    lines = ["| network | removed | criterion | " + " | ".join(COLUMNS) + " | seeds |",
             "|---|--:|---|" + "--:|" * (len(COLUMNS) + 1)]  # fmt: skip
    for (net, ratio), cut in sorted(known.items()):
        best = {column: max(_mean(found, column) for found in cut.values()) for column in COLUMNS}
        for criterion, found in sorted(cut.items()):
            cells = [_cell(found, column, best[column], len(cut) > 1) for column in COLUMNS]
            whole = f"{net} ({100 * found[0]['whole']:.2f})"
            lines.append(f"| {whole} | {100 * ratio:.0f} % | {criterion} | "
                         + " | ".join(cells) + f" | {len(found)} |")  # fmt: skip
    return lines


def _mean(found: list[dict[str, Any]], column: str) -> float:
    return statistics.mean(100 * row[column] for row in found)


def _cell(found: list[dict[str, Any]], column: str, best: float, compared: bool) -> str:
    """The best of a column is bold; no deviation where seeds have no part in it."""
    values = [100 * row[column] for row in found]
    mean = f"{_mean(found, column):.2f}"
    mean = f"**{mean}**" if compared and _mean(found, column) == best else mean
    return mean + (f" ± {statistics.stdev(values):.2f}" if len(set(values)) > 1 else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("data"), help="where CIFAR-10 lies")
    parser.add_argument("--weights", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--table", action="store_true", help="only write docs/benchmarks.md")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not options.table:
        pairs = [entry.partition("=") for entry in options.weights]
        run({name: Path(file) for name, _, file in pairs}, options.root)
    fill("benchmarks.md", "criteria", ["", *table(), ""])


if __name__ == "__main__":
    main()
