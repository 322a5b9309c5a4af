"""What do 8 bits cost in accuracy, and what do they bring in size and latency?

    python benchmarks/int8.py --root data --weights vgg16=runs/vgg16/baseline.safetensors \\
        --weights preresnet20=runs/preresnet20/baseline.safetensors
    python benchmarks/int8.py ... --calibrations      # all calibrations, of the whole networks
    python benchmarks/int8.py --table                 # only write docs/deploy.md

Four ONNX files of each network: whole and pruned (half of the multiply-adds, `dafp.slim` with 1,000
training images, without training), in float and quantised to 8 bits by `dafp.export.to_int8` on 300
training images. Accuracy on all 10,000 test images of CIFAR-10; latency in ONNX Runtime, batch 1,
one thread, the four files by turns, as `dafp bench` measures it. The networks are trained by
`dafp run` with the files in benchmarks/configs. Seed 0. Rows: benchmarks/results/int8.jsonl;
resumable: measured rows are skipped, latencies from a busy machine (`doubt`) are measured again.
"""

import argparse
import json
import os
import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import dafp
from dafp.choices import CALIBRATIONS
from dafp.data import DataSet, load
from dafp.export import to_int8, to_onnx
from dafp.latency import bench
from dafp.latency.layer_table import machine
from dafp.storage.revision import code_revision
from docpage import fill
from result_files import FOLDER, append_rows, read_rows

RESULTS = FOLDER / "int8.jsonl"
SHARE, SLIMMED, CALIBRATED, SECONDS = 0.5, 1000, 300, 5.0
FILES = ("whole", "whole int8", "pruned", "pruned int8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path("data"))
    parser.add_argument("--weights", action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--files", type=Path, default=Path("runs/int8"), help="for the ONNX files")
    parser.add_argument("--calibrations", action="store_true", help="all ways to choose ranges")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only write docs/deploy.md")
    options = parser.parse_args()
    if not options.table:
        torch.set_num_threads(1)
        options.files.mkdir(parents=True, exist_ok=True)
        data = load("cifar10", options.root, val_share=0)
        for name, _, file in (text.partition("=") for text in options.weights):
            for row in rows(name, Path(file), data, options):
                append_rows(options.results, row)
                print(json.dumps(row), flush=True)
    if options.results == RESULTS:
        write_table(read_rows(RESULTS))


def rows(name: str, file: Path, data: DataSet, options: Any) -> Iterator[dict[str, Any]]:
    """Measure what is missing for one network."""
    known = [row for row in read_rows(options.results) if row["net"] == name]
    about = {
        "net": name,
        "seed": 0,
        "threads": 1,
        "revision": code_revision(Path(dafp.__file__).parent, dafp.__version__),
        "machine": machine(),
        "python": platform.python_version(),
    }
    paths = {kind: options.files / f"{name}-{kind.replace(' ', '-')}.onnx" for kind in FILES}
    if not any(row["kind"] == "accuracy" for row in known) or not all(
        path.exists() for path in paths.values()
    ):
        yield {"kind": "accuracy", **about, "files": accuracies(file, data, paths)}
    if not any(row["kind"] == "latency" and not row["doubt"] for row in known):
        yield {"kind": "latency", **about, **latencies(paths)}
    if options.calibrations:
        done = {row["calibration"] for row in known if row["kind"] == "calibration"}
        for calibration in CALIBRATIONS:
            for per_channel in (True, False):
                key = calibration + ("" if per_channel else ", one scale per weight")
                if key not in done:
                    found = quantised(
                        paths["whole"],
                        options.files / "try.onnx",
                        data,
                        calibration=calibration,
                        per_channel=per_channel,
                    )
                    yield {"kind": "calibration", **about, "calibration": key, **found}


def accuracies(file: Path, data: DataSet, paths: dict[str, Path]) -> dict[str, Any]:
    """Write the four files; accuracy, bytes and agreement of each."""
    whole, example = dafp.load(file).eval(), torch.zeros(1, 3, 32, 32)
    images = [x for x, _ in some_images(data, SLIMMED)]
    small = dafp.slim(whole, example, SHARE, "macs", data=images, logits=True)
    before, after = dafp.cost(whole, example).macs, dafp.cost(small, example).macs
    found: dict[str, Any] = {}
    for kind, net, macs in (("whole", whole, before), ("pruned", small, after)):
        to_onnx(net, example, paths[kind], fold_bn=True)
        both = quantised(paths[kind], paths[f"{kind} int8"], data)
        for one, prefix in ((kind, "float_"), (f"{kind} int8", "")):
            found[one] = {
                "accuracy": both[f"{prefix}accuracy"],
                "bytes": both[f"{prefix}bytes"],
                "macs": macs,
            }
        found[f"{kind} int8"]["same_class"] = both["same_class"]
    return found


def quantised(source: Path, path: Path, data: DataSet, **how: Any) -> dict[str, Any]:
    """Quantise a file, whatever it loses: the table is to show that."""
    done = to_int8(
        source,
        path,
        some_images(data, CALIBRATED),
        data.batches("test", batch_size=100),
        floor=0,
        **how,
    )
    return {
        "accuracy": done.accuracy,
        "float_accuracy": done.float_accuracy,
        "bytes": done.size,
        "float_bytes": done.float_size,
        "same_class": done.same_class,
        "difference": done.difference,
    }


def some_images(data: DataSet, count: int) -> list[tuple[Tensor, Tensor]]:
    """Training images, not augmented, chosen by the seed."""
    batches = data.batches("train", batch_size=100, seed=0, augment=False)
    return [batch for _, batch in zip(range(count // 100), batches, strict=False)]


def latencies(paths: dict[str, Path]) -> dict[str, Any]:
    """The latency of the four files, measured by turns."""
    example = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    measured = list(bench(paths, example, runtimes=["onnx"], seconds=SECONDS))
    return {
        "doubt": next((row.doubt for row in measured if row.doubt), ""),
        "files": {
            row.model: {
                "ms": round(row.timing.median * 1e3, 4),
                "speedup": round(row.speedup.value, 4),
                "speedup_95": [round(row.speedup.low, 4), round(row.speedup.high, 4)],
            }
            for row in measured
        },
    }


def write_table(records: list[dict[str, Any]]) -> None:
    """Write the latest rows of every network into docs/deploy.md."""
    lines = [
        "",
        "| network | file | accuracy | bytes | ms | speed-up | 95 % |",
        "|---|---|--:|--:|--:|--:|--:|",
    ]
    last = {(r["net"], r["kind"]): r for r in records if r["kind"] != "calibration"}
    for net in dict.fromkeys(r["net"] for r in records):
        found, timed = (last.get((net, kind), {}) for kind in ("accuracy", "latency"))
        for kind in FILES if found else ():
            one = found["files"][kind]
            cells = [f"{one['accuracy']:.2%}".replace("%", " %"), f"{one['bytes']:,}"]
            if timed and not timed["doubt"]:
                time = timed["files"][kind]
                low, high = time["speedup_95"]
                cells += [
                    f"{time['ms']:.3g}",
                    f"{time['speedup']:.2f}×",
                    f"{low:.2f} to {high:.2f}",
                ]
            else:
                cells += ["", "too busy to tell" if timed else "", ""]
            lines.append(f"| {net} | {kind} | {' | '.join(cells)} |")
    tried = {(r["net"], r["calibration"]): r for r in records if r["kind"] == "calibration"}
    if tried:
        lines += ["", "| network | calibration | accuracy | same class |", "|---|---|--:|--:|"]
    lines += [
        f"| {net} | {how} | {row['accuracy']:.2%} | {row['same_class']:.2%} |".replace("%", " %")
        for (net, how), row in tried.items()
    ]
    fill("deploy.md", "int8", [*lines, ""])


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
