"""What does each part of pruning without training bring, and how many images does it need?

    .venv-zoo/bin/python benchmarks/post_training_parts.py --root data --weights akamaster=FILE …
    .venv-zoo/bin/python benchmarks/post_training_parts.py --table    # only write the page

CIFAR-10, all 10,000 test images, seed 0. First, half of the filters of every layer is removed, and
one part at a time is exchanged or left out. Then the number of calibration images is varied with
everything on, half of the multiply-adds removed. Last, shares of the multiply-adds of the layers
that can be pruned, instead of the whole network. Parts of the library that have no switch are
replaced for one row. Rows: benchmarks/results/post_training_parts.jsonl; resumable.
"""

import json
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn

import dafp
from criteria import accuracy, first, parser_for  # makes torchvision importable
from dafp.calibration import fitting, gram
from dafp.graph.channel_graph import ChannelGraph
from dafp.network.cost import layer_costs
from dafp.recovery import layer_goals, reconstruction
from dafp.storage.revision import code_revision
from docpage import fill
from post_training import EXAMPLE, load_network
from result_files import FOLDER, append_rows, read_rows

RESULTS = FOLDER / "post_training_parts.jsonl"
IMAGES = 1000
COUNTS = (16, 32, 64, 128, 250, 500, 1000, 2000)
BLOCKS = (0.3, 0.5, 0.7)

Batches = list[Tensor]


def plain(criterion: str, compensate: bool = False) -> Callable[..., nn.Module]:
    def build(model: nn.Module, graph: ChannelGraph, images: Batches) -> nn.Module:
        scores = getattr(dafp.criteria, criterion)(model, graph)
        plan = dafp.selection.uniform(scores, 0.5)
        return dafp.prune(model, graph, plan, compensate)

    return build


def rebuilt(
    criterion: str = "reconstruction_error",
    *,
    at_once: bool = False,
    mixture: bool = False,
    streams: bool = True,
) -> Callable[..., nn.Module]:
    def build(model: nn.Module, graph: ChannelGraph, images: Batches) -> nn.Module:
        score = getattr(dafp.criteria, criterion)
        needs = criterion == "reconstruction_error"
        scores = score(model, graph, images) if needs else score(model, graph)
        plan = dafp.selection.uniform(scores, 0.5)
        with ExitStack() as stack:
            if mixture:
                stack.enter_context(mock.patch.object(fitting, "MOST_UNKNOWNS", 0))
                stack.enter_context(mock.patch.object(gram, "MOST_COLUMNS", 0))
            if not streams:
                stack.enter_context(
                    mock.patch.object(layer_goals, "watch_sums", return_value=nullcontext())
                )
            memory = 0 if at_once else reconstruction.MEMORY
            whole = dafp.reconstruct(model, graph, plan, images, memory=memory)
        return dafp.prune(whole, graph, plan)

    return build


def measured(model: nn.Module, graph: ChannelGraph, images: Batches) -> nn.Module:
    """The multiply-adds of the row above, with widths by measured damage."""
    scores = dafp.criteria.reconstruction_error(model, graph, images)
    same = graph.resolve(dafp.selection.uniform(scores, 0.5))
    removed = dafp.selection.removed_share(graph, same, "macs")
    return dafp.slim(model, EXAMPLE, removed, "macs", data=images, logits=True)


PARTS: dict[str, Callable[..., nn.Module]] = {
    "magnitude (`l2_norm`), nothing rebuilt": plain("l2_norm"),
    "the same, means compensated": plain("l2_norm", compensate=True),
    "elimination; mixtures of channels, all layers at once": rebuilt(
        at_once=True, mixture=True, streams=False
    ),
    "mixtures, layer after layer": rebuilt(mixture=True, streams=False),
    "patches, all layers at once": rebuilt(at_once=True, streams=False),
    "patches, layer after layer": rebuilt(streams=False),
    "and the error of residual streams corrected": rebuilt(),
    "channels by `l2_norm` instead of elimination": rebuilt("l2_norm"),
    "channels by `dependency_aware` instead": rebuilt("dependency_aware"),
    "channels at random instead": rebuilt("random"),
    "elimination, widths by measured damage": measured,
}


def run(name: str, file: Path, root: Path) -> None:
    """All rows of one network."""
    code = code_revision(Path(dafp.__file__).parent, dafp.__version__)
    model, data = load_network(name, file, root)
    graph = dafp.trace(model, EXAMPLE)

    def images(count: int) -> Batches:
        size = min(200, count)
        batches = data.batches("train", batch_size=size, seed=0, augment=False)
        found = first(batches, -(-count // size))
        return list(torch.cat([x for x, _ in found])[:count].split(size))

    def row(kind: str, part: str, build: Callable[[], nn.Module]) -> None:
        key = {"net": name, "kind": kind, "part": part}
        if any(key.items() <= known.items() for known in read_rows(RESULTS)):
            return
        small = build()
        found = {**key, "accuracy": accuracy(small, data)}
        plan = dafp.plan_of(small)
        found["macs_left"] = plan.after.macs / plan.before.macs
        if kind == "part":
            fresh = first(data.batches("train", batch_size=200, seed=0), 10)
            again = dafp.recalibrate(small, [x for x, _ in fresh])
            found["recalibrated"] = accuracy(again, data)
        print(json.dumps(found), flush=True)
        append_rows(RESULTS, {**found, "revision": code})

    def slim(removed: float, count: int) -> nn.Module:
        data = images(count)
        return dafp.slim(model, EXAMPLE, removed, "macs", data=data, images=count, logits=True)

    for part, build in PARTS.items():
        row("part", part, partial(build, model, graph, images(IMAGES)))
    for count in COUNTS:
        row("images", str(count), partial(slim, 0.5, count))
    costs = layer_costs(model, EXAMPLE)
    inside = sum(cost.macs for layer, cost in costs.items() if "layer" in layer)
    for share in BLOCKS if inside else ():
        removed = share * inside / dafp.cost(model, EXAMPLE).macs
        row("blocks", str(share), partial(slim, removed, IMAGES))


def parts_table() -> list[str]:
    rows = read_rows(RESULTS)
    nets = list(dict.fromkeys(row["net"] for row in rows))
    lines = ["| | " + " | ".join(f"{net}, as cut / recalibrated" for net in nets) + " |",
             "|---|" + "--:|" * len(nets)]  # fmt: skip
    for part in PARTS:
        cells = [_cell(rows, net, "part", part) for net in nets]
        lines.append(f"| {part} | " + " | ".join(cells) + " |")
    lines += ["", "| images | " + " | ".join(nets) + " |", "|--:|" + "--:|" * len(nets)]
    for count in COUNTS:
        cells = [_cell(rows, net, "images", str(count)) for net in nets]
        lines.append(f"| {count:,} | " + " | ".join(cells) + " |")
    for share in BLOCKS:
        known = [row for row in rows if (row["kind"], row["part"]) == ("blocks", str(share))]
        if share == BLOCKS[0] and known:
            lines += ["", "| of the blocks' multiply-adds removed | "
                      + " | ".join(row["net"] for row in known) + " |",
                      "|--:|" + "--:|" * len(known)]  # fmt: skip
        if known:
            cells = [f"{100 * row['accuracy']:.1f}" for row in known]
            lines.append(f"| {share:.0%} | " + " | ".join(cells) + " |")
    return lines


def _cell(rows: list[dict[str, object]], net: str, kind: str, part: str) -> str:
    for row in rows:
        if (row["net"], row["kind"], row["part"]) == (net, kind, part):
            columns = [row["accuracy"], *([row["recalibrated"]] if "recalibrated" in row else [])]
            return " / ".join(f"{100 * float(str(value)):.1f}" for value in columns)
    return "not run"


def main() -> None:
    parser = parser_for(__doc__)
    parser.add_argument("--table", action="store_true", help="only write docs/post-training.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        for name, file in options.weights:
            run(name, file, options.root)
    fill("post-training.md", "parts", ["", *parts_table(), ""])


if __name__ == "__main__":
    main()
