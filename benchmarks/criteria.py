"""Which criterion selects the best filters? dafp and Torch-Pruning on two published networks.

    .venv-zoo/bin/python benchmarks/criteria.py --root data --weights akamaster=FILE \\
        --weights karanchahal=FILE                      # resumable: measured rows are skipped
    .venv-zoo/bin/python benchmarks/criteria.py --table     # only write docs/benchmarks.md

CIFAR-10, all 10,000 test images. One-shot pruning of 30 or 50 % of the inner filters of every
block; every criterion removes the same number from every layer, so that only the selection differs.
Measured are the accuracy after pruning (plain), with the mean of removed channels added to their
consumers (compensate), with BN statistics recomputed from 2,000 augmented training images
(recalibrate), and after three epochs of fine-tuning with a cosine schedule from lr 0.01 to 0 (a
constant 0.01 costs even the unpruned network 2.6 points, more than the criteria differ by). Seeds
0-2 draw the images of recalibration, Taylor and the measured shift_aware, and the order of
fine-tuning. The field precision of a row is that of its fine-tuning; bfloat16 means autocast, and
docs/benchmarks.md explains the rows that name Winograd. Rows: benchmarks/results/criteria.jsonl.
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
from result_files import FOLDER, append_rows, read_rows  # noqa: E402

RESULTS = FOLDER / "criteria.jsonl"
RATIOS, SEEDS, EPOCHS, RATE, BATCH = (0.3, 0.5), (0, 1, 2), 3, 0.01, 128
COLUMNS = ("plain", "compensate", "recalibrate", "finetuned")  # fields of a row

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
NOTHING = "–"  # nothing removed: the effect of the three epochs alone
CASES = list(itertools.product(RATIOS, CRITERIA))


def _peer(model: nn.Module, graph: ChannelGraph, importance: Any) -> Scores:
    """Torch-Pruning's importance of every filter, from its own dependency graph."""
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
    """A graph of only the filters between the two convolutions of each block."""
    example = torch.zeros(1, 3, 32, 32)
    outer = [g.name for g in dafp.trace(model, example).groups if "layer" not in g.name]
    graph = dafp.trace(model, example, keep=outer)
    assert all(g.name.endswith(".conv1") for g in graph.groups)
    return graph


def measure(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, data: DataSet, seed: int
) -> dict[str, float]:
    """Accuracy after recalibration and after fine-tuning, which depend on the seed."""
    images = first(data.batches("train", batch_size=200, seed=seed), 10)
    small = dafp.recalibrate(dafp.prune(model, graph, plan), [x for x, _ in images])
    row = {"recalibrate": accuracy(small, data)}
    finetune(small, data, seed)
    return {**row, "finetuned": accuracy(small, data)}


def without_data(
    model: nn.Module, graph: ChannelGraph, plan: PruningPlan, data: DataSet
) -> dict[str, float]:
    """Accuracy of variants that need no data: the same for every seed that gives this plan."""
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
def accuracy(model: nn.Module, data: DataSet, part: str = "test") -> float:
    model.to(memory_format=torch.channels_last).eval()
    right = [(model(x).argmax(1) == y).double() for x, y in data.batches(part, batch_size=BATCH)]
    return float(torch.cat(right).mean())


def normalised(data: DataSet, mean: Any, std: Any) -> DataSet:
    """The same images with the normalisation that the network was trained with."""
    parts = {}
    for name, part in data.parts.items():
        assert isinstance(part, Images)
        parts[name] = dataclasses.replace(part, mean=mean, std=std)
    return dataclasses.replace(data, mean=mean, std=std, parts=parts)


def first(batches: Iterator[tuple[Tensor, Tensor]], count: int) -> Batches:
    return [batch for _, batch in zip(range(count), batches, strict=False)]


def run(weights: dict[str, Path], root: Path) -> None:
    before: dict[tuple[str, str], dict[str, float]] = {}  # network, plan -> without_data
    whole: dict[str, float] = {}
    for seed in SEEDS:
        for name, file in weights.items():
            published = NETWORKS[name]
            data = normalised(load("cifar10", root, val_share=0), published.mean, published.std)
            if name not in whole:
                whole[name] = accuracy(published.load(file), data)
            for ratio, criterion in CASES if seed else [*CASES, (0.0, NOTHING)]:
                key = {"net": name, "ratio": ratio, "criterion": criterion, "seed": seed}
                if any(key.items() <= row.items() for row in read_rows(RESULTS)):
                    continue
                model = published.load(file)
                graph = trace_inner(model)
                batches = first(data.batches("train", batch_size=200, seed=seed, augment=False), 10)
                plan = PruningPlan({})
                if criterion != NOTHING:
                    scores = CRITERIA[criterion](model, graph, batches)
                    plan = dafp.selection.uniform(scores, ratio)
                same = (name, plan.to_json())
                if same not in before:
                    before[same] = without_data(model, graph, plan, data)
                row = {**key, "precision": "float32", "whole": whole[name], **before[same]}
                row |= measure(model, graph, plan, data, seed)
                print(json.dumps(row), flush=True)
                append_rows(RESULTS, row)


def table() -> list[str]:
    """Mean ± standard deviation over seeds, a line for each network, ratio and criterion."""
    known: dict[tuple[str, float], dict[str, list[dict[str, Any]]]] = {}
    for row in read_rows(RESULTS):
        by_criterion = known.setdefault((row["net"], row["ratio"]), {})
        by_criterion.setdefault(row["criterion"], []).append(row)
    headings = " | ".join(COLUMNS).replace("finetuned", "fine-tuned")
    lines = [f"| network | removed | criterion | {headings} | seeds |",
             "|---|--:|---|" + "--:|" * (len(COLUMNS) + 1)]  # fmt: skip
    for (net, ratio), by_criterion in sorted(known.items()):
        best = {
            column: max(_mean(found, column) for found in by_criterion.values())
            for column in COLUMNS
        }
        for criterion, found in sorted(by_criterion.items()):
            cells = [
                _cell(found, column, best[column], len(by_criterion) > 1) for column in COLUMNS
            ]
            whole = f"{net} ({100 * found[0]['whole']:.2f})"
            lines.append(f"| {whole} | {100 * ratio:.0f} % | {criterion} | "
                         + " | ".join(cells) + f" | {len(found)} |")  # fmt: skip
    return lines


def _mean(found: list[dict[str, Any]], column: str) -> float:
    return statistics.mean(100 * row[column] for row in found)


def _cell(found: list[dict[str, Any]], column: str, best: float, compared: bool) -> str:
    """The best value of a column is bold; no deviation where the seed has no influence."""
    values = [100 * row[column] for row in found]
    mean = f"{_mean(found, column):.2f}"
    mean = f"**{mean}**" if compared and _mean(found, column) == best else mean
    return mean + (f" ± {statistics.stdev(values):.2f}" if len(set(values)) > 1 else "")


def parser_for(text: str) -> argparse.ArgumentParser:
    """The options of this script and of criteria_gone.py."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder with CIFAR-10")
    parser.add_argument(
        "--weights", type=_name_and_file, action="append", default=[], metavar="NAME=FILE"
    )
    return parser


def _name_and_file(text: str) -> tuple[str, Path]:
    name, _, file = text.partition("=")
    return name, Path(file)


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--table", action="store_true", help="only write docs/benchmarks.md")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if not options.table:
        run(dict(options.weights), options.root)
    fill("benchmarks.md", "criteria", ["", *table(), ""])


if __name__ == "__main__":
    main()
