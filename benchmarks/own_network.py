"""Is a network of one's own with half the multiply-adds faster, and does the report say the same?

    python benchmarks/own_network.py              # on a quiet machine
    python benchmarks/own_network.py --load 4     # beside four busy processes that it starts
    python benchmarks/own_network.py --train      # only train, so that the next call measures only
    python benchmarks/own_network.py --table      # only write docs/benchmarks.md

By commands alone, as a user does it: four convolutions (16, 32, 64, 128 channels), each with BN,
ReLU and pooling, on images of 64×64 pixels. `dafp run --target macs=0.5` once, and `dafp prune
--target macs=0.5` of its baseline, as it is and with `--round-to 8` and `--round-to 1`. Both
commands choose multiples of 16 here; 16 channels are one vector of AVX-512. In each turn, the
closing table of the run is measured again, which is what the card of its report shows, and `dafp
bench`, another process, measures the same files in PyTorch and in ONNX Runtime. A row is a turn,
with the load average before it. Batch 1, one thread. Card and bench agree if their 95 % intervals
overlap; a measurement that states its doubt ("too busy to tell") claims nothing. Rows:
benchmarks/results/own_network.jsonl.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import dafp
from dafp.latency.layer_table import machine
from dafp.storage.revision import code_revision
from docpage import fill
from result_files import FOLDER, append_rows, read_rows

RESULTS = FOLDER / "own_network.jsonl"
SIZE, COUNT, SECONDS = 64, 120, 1.0
FILES = {
    "whole": "mine/baseline.safetensors",
    "half": "mine/model.safetensors",
    "pruned": "pruned.safetensors",
    "pruned, multiples of 8": "eight.safetensors",
    "pruned, any width": "any.safetensors",
}
ROUNDED = {"pruned": (), "pruned, multiples of 8": ("8",), "pruned, any width": ("1",)}
NETWORK = """
from torch import nn

def small(num_classes=3):
    layers, channels = [], 3
    for width in (16, 32, 64, 128):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
                   nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(channels, num_classes))
"""
RUN = (
    "run", "--model", "mynets:small", "--data", "folder:stripes", "--size", str(SIZE),
    "--target", "macs=0.5", "--set", "baseline.epochs=5", "--set", "sparse.epochs=8",
    "--set", "finetune.epochs=3", "--set", "threads=1", "--out", "mine",
)  # fmt: skip
PRUNE = (
    "prune", FILES["whole"], "--trust", "--data", "folder:stripes", "--target", "macs=0.5",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/own_network"))
    parser.add_argument("--load", type=int, default=0, help="busy processes to start")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--train", action="store_true", help="only what is to be measured")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="only write docs/benchmarks.md")
    options = parser.parse_args()
    if not options.table:
        prepare(options.out)
    if not options.table and not options.train:
        with busy(options.load):
            for _ in range(options.turns):
                before = round(os.getloadavg()[0], 1)  # of the last minute, others included
                row = {"started": options.load, "load": before, **about()}
                row |= measure(options.out)
                append_rows(options.results, row)
                print(json.dumps(row), flush=True)
    if options.results == RESULTS and not options.train:
        write_table(read_rows(RESULTS))


def about() -> dict[str, Any]:
    """The code and the machine that a row comes from."""
    return {
        "revision": code_revision(Path(dafp.__file__).parent, dafp.__version__),
        "machine": machine(),
        "python": platform.python_version(),
    }


def prepare(out: Path) -> None:
    """The network, the images, the run and the pruned file, unless they are there."""
    if not (out / "stripes").exists():
        out.mkdir(parents=True, exist_ok=True)
        (out / "mynets.py").write_text(NETWORK)
        draw(out / "stripes")
    if not (out / "mine/result.json").exists():
        called(out, *RUN)
    for name, step in ROUNDED.items():
        if not (out / FILES[name]).exists():
            rounded = ("--round-to", *step) if step else ()
            called(out, *PRUNE, *rounded, "--out", FILES[name])


def draw(folder: Path) -> None:
    """Images of stripes in noise; their direction is the class."""
    random = np.random.default_rng(0)
    y, x = np.mgrid[:SIZE, :SIZE]
    for name, along in (("across", y), ("down", x), ("slanting", x + y)):
        (folder / name).mkdir(parents=True)
        for number in range(COUNT):
            wave = np.sin(along / random.uniform(1.5, 4) + random.uniform(0, 6))
            pixels = 128 + 50 * wave[..., None] + random.normal(0, 40, (SIZE, SIZE, 3))
            image = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            image.save(folder / name / f"{number}.png")


def called(out: Path, *args: str) -> str:
    """What `dafp ARGS` prints."""
    command = [sys.executable, "-m", "dafp", *args, "--json"]
    done = subprocess.run(command, cwd=out, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


@contextmanager
def busy(count: int) -> Iterator[None]:
    """Beside `count` processes that do nothing but calculate."""
    started = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for one in started:
            one.kill()
            one.wait()


def measure(out: Path) -> dict[str, Any]:
    """Speed-ups over the whole network: of the card, and of `dafp bench` in two runtimes."""
    (out / "mine/result.json").unlink()  # the next call measures again what is trained already
    first, *_, last = json.loads(called(out, *RUN))["stages"]
    card = last["speeds"][0]
    rows = json.loads(
        called(
            out, "bench", *FILES.values(), "--trust", "--runtime", "eager", "--runtime", "onnx",
            "--seconds", str(SECONDS),
        )
    )  # fmt: skip
    names = {file: name for name, file in FILES.items()}
    found: dict[str, Any] = {
        "macs": [first["macs"], last["macs"]],
        "card": {
            "speedup": round(card["speedup"], 4),
            "speedup_95": [round(card["low"], 4), round(card["high"], 4)],
            "doubt": card["doubt"],
        },
    }
    for row in rows:
        found.setdefault(row["runtime"], {})[names[row["model"]]] = {
            "ms": round(row["median_s"] * 1e3, 4),
            "speedup": round(row["speedup"], 4),
            "speedup_95": [round(end, 4) for end in row["speedup_95"]],
            "ideal": round(row["ideal"], 3),
            "doubt": row["doubt"],
        }
    return found


def agree(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two intervals overlap; a measurement with a doubt claims nothing."""
    (a, b), (c, d) = one["speedup_95"], other["speedup_95"]
    return bool(one["doubt"] or other["doubt"]) or (a <= d and c <= b)


def write_table(records: list[dict[str, Any]]) -> None:
    """Write all turns into docs/benchmarks.md, the quietest first."""
    lines = [
        "",
        "| load | card of the report | `bench`, PyTorch | agree | ONNX Runtime "
        "| pruned | multiples of 8 | any width |",
        "|--:|--:|--:|--|--:|--:|--:|--:|",
    ]
    for row in sorted(records, key=lambda r: float(r["load"])):
        card, benched = row["card"], row["eager"]["half"]
        onnx = [row["onnx"][name] for name in FILES if name != "whole"]
        cells = [cell(card), cell(benched), "yes" if agree(card, benched) else "**no**"]
        lines.append(f"| {row['load']} | {' | '.join([*cells, *map(cell, onnx)])} |")
    fill("benchmarks.md", "own network", [*lines, ""])


def cell(one: dict[str, Any]) -> str:
    low, high = one["speedup_95"]
    return (
        "too busy to tell" if one["doubt"] else f"{one['speedup']:.2f}× ({low:.2f} to {high:.2f})"
    )


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
