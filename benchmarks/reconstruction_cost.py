"""What does reconstruction cost on large networks, in forward passes of the calibration set?

    .venv-zoo/bin/python benchmarks/reconstruction_cost.py             # about 15 minutes
    .venv-zoo/bin/python benchmarks/reconstruction_cost.py --table     # only write the page

ResNet-50 and MobileNetV2 of torchvision at 224 pixels, 64 random images. Weights are random; the
statistics of every BN are those of one pass over random images, so that activations are neither
dead nor exploding. Half of the multiply-adds that can be removed go. Times are processor seconds
of one thread. "fits" is the part of `reconstruct` inside the least squares: products of patches and
goals, factorisation, choice of the damping. Rows: benchmarks/results/reconstruction_cost.jsonl.
"""

import argparse
import resource
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor, nn

import networks

SHIM = networks.shim_torchvision()

import dafp  # noqa: E402
from dafp.recovery import reconstruction  # noqa: E402
from dafp.storage.revision import code_revision  # noqa: E402
from docpage import fill  # noqa: E402
from result_files import FOLDER, append_rows, read_rows  # noqa: E402

RESULTS = FOLDER / "reconstruction_cost.jsonl"
NETWORKS = ("torchvision:resnet50", "torchvision:mobilenet_v2")
IMAGES, BATCH, TARGET = 64, 16, 0.5


def with_statistics(model: nn.Module, batch: Tensor) -> nn.Module:
    """Set BN statistics from one pass over random images."""
    return dafp.recalibrate(model, [batch])


def seconds(job: Callable[[], object]) -> float:
    start = time.process_time()
    job()
    return time.process_time() - start


@contextmanager
def timed_fits(spent: list[float]) -> Iterator[None]:
    """Add up the processor time of all least-squares fits inside the block."""
    fit = reconstruction.fit

    def timed(*args: object, **kwargs: object) -> object:
        start = time.process_time()
        try:
            return fit(*args, **kwargs)  # type: ignore[arg-type]
        finally:
            spent.append(time.process_time() - start)

    with mock.patch.object(reconstruction, "fit", timed):
        yield


def peak_gib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def measure(name: str) -> dict[str, object]:
    model, _ = networks.build(name)
    torch.manual_seed(1)
    images = torch.randn(IMAGES, 3, 224, 224)
    model = with_statistics(model, images[:32]).eval()
    batches = list(images.split(BATCH))
    example = images[:1]
    with torch.no_grad():
        model(example)
        forward = seconds(lambda: [model(batch) for batch in batches])
        joined = seconds(lambda: model(images))
    graph = dafp.trace(model, example)
    scores = dafp.criteria.l2_norm(model, graph)
    removed = TARGET * dafp.selection.reach(graph, "macs")
    plan = dafp.selection.to_target(scores, graph, removed, "macs", dafp.selection.uniform)
    before, spent = peak_gib(), list[float]()
    with timed_fits(spent):
        rebuild = seconds(lambda: dafp.reconstruct(model, graph, plan, batches))
    after_rebuild = peak_gib()
    slim = seconds(lambda: dafp.slim(model, example, removed, "macs", data=batches))
    return {
        "network": name,
        "images": IMAGES,
        "removed": round(removed, 3),
        "forward": round(forward, 1),
        "forward_in_one_batch": round(joined, 1),
        "reconstruct": round(rebuild, 1),
        "fits": round(sum(spent), 1),
        "passes": round((rebuild - sum(spent)) / forward, 2),
        "slim": round(slim, 1),
        "gib_before": round(before, 2),
        "gib_reconstruct": round(after_rebuild, 2),
        "gib_slim": round(peak_gib(), 2),
    }


def table() -> list[str]:
    lines = [
        "| network | forward pass | `reconstruct` | least squares in it | rest, in passes | "
        "`slim(data=)` | peak memory |",
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    latest = {row["network"]: row for row in read_rows(RESULTS)}
    for name, row in latest.items():
        lines.append(
            f"| {name.partition(':')[2]} | {row['forward']} s | {row['reconstruct']} s | "
            f"{row['fits']} s | {row['passes']} | {row['slim']} s | {row['gib_slim']} GiB |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="only write docs/post-training.md")
    parser.add_argument("names", nargs="*", default=NETWORKS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        code = code_revision(dafp_folder(), dafp.__version__)
        for name in options.names:
            row = {**measure(name), "revision": code}
            print(row, flush=True)
            append_rows(RESULTS, row)
    fill("post-training.md", "cost", ["", *table(), ""])


def dafp_folder() -> Path:
    return Path(dafp.__file__).parent


if __name__ == "__main__":
    main()
