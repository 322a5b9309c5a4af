"""What does each criterion remove? The channels of benchmarks/criteria.py, looked at on images.

    .venv-zoo/bin/python benchmarks/criteria_gone.py --root data --weights akamaster=FILE \\
        --weights karanchahal=FILE              # two minutes; a table of docs/benchmarks.md

On the 2,000 training images of seed 0, for the inner filters that go: *heard* is their share of the
variance that the second convolution of their block hears, s²·‖W‖² over its sum, the mean over
blocks; *missed* is what would be left of it if the kept channels stood in for them as well as a
linear mix of theirs can, place by place; *active* is how often they are above zero; *norm* is the
Euclidean norm of the filter itself by the mean norm of its layer.
"""

import argparse
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
class Layer:
    """The channels between the two convolutions of a block."""

    covariance: Tensor  # C × C, over images and places
    reader: Tensor  # C × C: products of the slices that read them
    active: Tensor  # C: how often above zero
    norm: Tensor  # C: of the filter, by the mean of the layer


@torch.no_grad()
def looked_at(model: nn.Module, graph: ChannelGraph, batches: criteria.Batches) -> dict[str, Layer]:
    """What the images show of every group."""
    sums: dict[str, list[Tensor]] = {}

    def note(name: str, made: Tensor) -> None:
        out = torch.relu(made).double().transpose(0, 1).flatten(1)
        places = out.shape[1]
        now = [out.mean(1), out @ out.T / places, (out > 0).double().mean(1)]
        sums[name] = [a + b for a, b in zip(sums.get(name, [0] * 3), now, strict=True)]

    hooks = [
        model.get_submodule(group.name.replace("conv1", "bn1")).register_forward_hook(
            lambda module, args, made, name=group.name: note(name, made)
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
        reader = _weight(model, name.replace("conv1", "conv2")).transpose(0, 1).flatten(1)
        covariance = products - average.outer(average)
        found[name] = Layer(covariance, reader @ reader.T, active, norm / norm.mean())
    return found


def _weight(model: nn.Module, name: str) -> Tensor:
    weight = model.get_submodule(name).weight
    assert isinstance(weight, Tensor)
    return weight.detach().double()


def of_gone(found: dict[str, Layer], plan: PruningPlan) -> dict[str, float]:
    """Of the channels that a plan removes: shares heard and missed, mean activity and norm."""
    values: dict[str, list[float]] = {"heard": [], "missed": [], "active": [], "norm": []}
    for name, layer in found.items():
        kept = torch.zeros(len(layer.norm), dtype=torch.bool)
        kept[list(plan.keep[name])] = True
        one_by_one = layer.covariance.diag() * layer.reader.diag()
        values["heard"].append(float(one_by_one[~kept].sum() / one_by_one.sum()))
        values["missed"].append(_missed(layer, kept))
        values["active"] += layer.active[~kept].tolist()
        values["norm"] += layer.norm[~kept].tolist()
    return {key: mean(found) for key, found in values.items()}


def _missed(layer: Layer, kept: Tensor) -> float:
    """tr(G·Σ of the removed, given the kept) / tr(G·Σ), G the products of the reading slices."""
    both, gone = layer.covariance[~kept][:, kept], layer.covariance[~kept][:, ~kept]
    left = gone - both @ torch.linalg.pinv(layer.covariance[kept][:, kept], hermitian=True) @ both.T
    reader = layer.reader[~kept][:, ~kept]
    return float((reader * left).sum() / (layer.reader * layer.covariance).sum())


def run(weights: dict[str, Path], root: Path) -> list[dict[str, Any]]:
    rows = []
    for name, file in weights.items():
        published = NETWORKS[name]
        data = criteria.shown_as(load("cifar10", root, val_share=0), published.mean, published.std)
        model = published.load(file)
        graph = criteria.trace_inner(model)
        drawn = data.batches("train", batch_size=200, seed=0, augment=False)
        batches = criteria.first(drawn, 10)
        found = looked_at(model, graph, batches)
        for ratio, criterion in criteria.CUTS:
            scores = criteria.CRITERIA[criterion](model, graph, batches)
            plan = dafp.selection.uniform(scores, ratio)
            rows.append({"net": name, "ratio": ratio, "criterion": criterion,
                         **of_gone(found, plan)})  # fmt: skip
    return rows


def table(rows: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| network | removed | criterion | heard | missed | active | norm |",
        "|---|--:|---|--:|--:|--:|--:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['net']} | {row['ratio']:.0%} | {row['criterion']} | {row['heard']:.1%} "
            f"| {row['missed']:.1%} | {row['active']:.0%} | {row['norm']:.2f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("data"), help="where CIFAR-10 lies")
    parser.add_argument("--weights", action="append", default=[], metavar="NAME=FILE")
    options = parser.parse_args()
    pairs = [entry.partition("=") for entry in options.weights]
    rows = run({name: Path(file) for name, _, file in pairs}, options.root)
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n")
    fill("benchmarks.md", "criteria gone", ["", *table(rows), ""])


if __name__ == "__main__":
    main()
