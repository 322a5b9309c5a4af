"""What do the channels that each criterion of benchmarks/criteria.py removes have in common?

    .venv-zoo/bin/python benchmarks/criteria_gone.py --root data --weights akamaster=FILE \\
        --weights karanchahal=FILE              # two minutes; writes a table of docs/benchmarks.md

Statistics of the removed inner filters on the 2,000 training images of seed 0. Fields of a row in
benchmarks/results/criteria_gone.json:
- variance: their share of the variance that channels contribute to the second convolution of their
  block, s²·‖W‖² divided by its sum, averaged over blocks;
- missed: the share that remains if the kept channels replace them by the best linear combination
  at every position;
- active: how often they are above zero;
- norm: the Euclidean norm of the filter, divided by the mean norm of its layer.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn

import criteria
import dafp
from dafp.data import load
from dafp.graph.channel_graph import ChannelGraph
from dafp.graph.plan import PruningPlan
from docpage import fill
from pretrained import NETWORKS

RESULTS = Path(__file__).parent / "results" / "criteria_gone.json"


@dataclass(frozen=True)
class InnerChannels:
    """Statistics of the channels between the two convolutions of a block."""

    covariance: Tensor  # C × C, over images and positions
    consumer: Tensor  # C × C: products of the weight slices that consume them
    active: Tensor  # C: how often above zero
    norm: Tensor  # C: of the filter, divided by the mean of the layer


@torch.no_grad()
def statistics_of(
    model: nn.Module, graph: ChannelGraph, batches: criteria.Batches
) -> dict[str, InnerChannels]:
    """Statistics of every group on these images."""
    sums: dict[str, list[Tensor]] = {}

    def add(name: str, made: Tensor) -> None:
        out = torch.relu(made).double().transpose(0, 1).flatten(1)
        places = out.shape[1]
        now = [out.mean(1), out @ out.T / places, (out > 0).double().mean(1)]
        sums[name] = [a + b for a, b in zip(sums.get(name, [0] * 3), now, strict=True)]

    hooks = [
        model.get_submodule(group.name.replace("conv1", "bn1")).register_forward_hook(
            lambda module, args, made, name=group.name: add(name, made)
        )
        for group in graph.groups
    ]
    for x, _ in batches:
        model(x)
    for hook in hooks:
        hook.remove()
    found = {}
    for name, totals in sums.items():
        average, products, active = (total / len(batches) for total in totals)
        norm = _weight(model, name).flatten(1).norm(dim=1)
        consumer = _weight(model, name.replace("conv1", "conv2")).transpose(0, 1).flatten(1)
        covariance = products - average.outer(average)
        found[name] = InnerChannels(covariance, consumer @ consumer.T, active, norm / norm.mean())
    return found


def _weight(model: nn.Module, name: str) -> Tensor:
    weight = model.get_submodule(name).weight
    assert isinstance(weight, Tensor)
    return weight.detach().double()


def of_removed(found: dict[str, InnerChannels], plan: PruningPlan) -> dict[str, float]:
    """The fields of a row (see the top of this file) for the channels that a plan removes."""
    values: dict[str, list[float]] = {"variance": [], "missed": [], "active": [], "norm": []}
    for name, layer in found.items():
        kept = torch.zeros(len(layer.norm), dtype=torch.bool)
        kept[list(plan.keep[name])] = True
        one_by_one = layer.covariance.diag() * layer.consumer.diag()
        values["variance"].append(float(one_by_one[~kept].sum() / one_by_one.sum()))
        values["missed"].append(_missed(layer, kept))
        values["active"] += layer.active[~kept].tolist()
        values["norm"] += layer.norm[~kept].tolist()
    return {key: mean(found) for key, found in values.items()}


def _missed(layer: InnerChannels, kept: Tensor) -> float:
    """tr(G·Σ of the removed, given the kept) / tr(G·Σ), G the products of the consuming slices."""
    both, gone = layer.covariance[~kept][:, kept], layer.covariance[~kept][:, ~kept]
    left = gone - both @ torch.linalg.pinv(layer.covariance[kept][:, kept], hermitian=True) @ both.T
    consumer = layer.consumer[~kept][:, ~kept]
    return float((consumer * left).sum() / (layer.consumer * layer.covariance).sum())


def run(weights: dict[str, Path], root: Path) -> list[dict[str, Any]]:
    rows = []
    for name, file in weights.items():
        published = NETWORKS[name]
        data = criteria.normalised(
            load("cifar10", root, val_share=0), published.mean, published.std
        )
        model = published.load(file)
        graph = criteria.trace_inner(model)
        drawn = data.batches("train", batch_size=200, seed=0, augment=False)
        batches = criteria.first(drawn, 10)
        found = statistics_of(model, graph, batches)
        for ratio, criterion in criteria.CASES:
            scores = criteria.CRITERIA[criterion](model, graph, batches)
            plan = dafp.selection.uniform(scores, ratio)
            rows.append({"net": name, "ratio": ratio, "criterion": criterion,
                         **of_removed(found, plan)})  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| network | removed | criterion | variance | not replaceable | active | norm |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['net']} | {row['ratio']:.0%} | {row['criterion']} | {row['variance']:.1%} "
            f"| {row['missed']:.1%} | {row['active']:.0%} | {row['norm']:.2f} |"
        )
    return lines


def main() -> None:
    options = criteria.parser_for(__doc__).parse_args()
    rows = run(dict(options.weights), options.root)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    fill("benchmarks.md", "criteria gone", ["", *table(rows), ""])


if __name__ == "__main__":
    main()
