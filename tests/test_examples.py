"""Every example, run by the line in its docstring: it prints a smaller network that is as good."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import dafp
from support.vision import vision_paths

SOURCE, ROOT = Path(dafp.__file__).parents[1], Path(__file__).parents[1]
FILES = sorted((ROOT / "examples").glob("*.py"))

# file -> what it measures, and how good the pruned network must be at least (a loss: at most)
GOOD = {
    "plain_loop": ("accuracy", 0.9),
    "lightning_callback": ("accuracy", 0.85),
    "huggingface_trainer": ("accuracy", 0.9),
    "accelerate_loop": ("accuracy", 0.85),
    "timm_weights": ("accuracy", 0.9),
    "custom_layer": ("accuracy", 0.85),
    "segmentation": ("mean IoU", 0.85),
    "detector": ("loss", 0.5),
    "ddp_amp": ("accuracy", 0.85),
    "yolo": ("mAP", 0.2),
}

NEEDED = {"timm_weights": "timm", "yolo": "ultralytics"}  # apart from the others: see Makefile

WARNINGS = (
    "error",
    # ultralytics passes dynamo=False, which torch 2.13 announces to remove
    "ignore:You are using the legacy TorchScript-based ONNX export:DeprecationWarning",
    "ignore:The feature will be removed:DeprecationWarning",  # the same export, inside torch
    # Lightning 2.6 makes a tree node that torch 2.13 announces to replace
    "ignore::FutureWarning:lightning.pytorch.utilities._pytree",
    # on machines with many cores it suggests worker processes
    "ignore::UserWarning:lightning.pytorch.trainer.connectors.data_connector",
)
LINE = re.compile(
    r"^(before|after): (accuracy|mean IoU|loss|mAP) ([\d.]+).*, (\d+) filters, ([\d,]+) parameters"
)


def command(path: Path) -> str:
    """What the first line of the docstring says to run."""
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring is not None
    return docstring.splitlines()[0].partition(": ")[2]


def run(path: Path) -> str:
    """What the example prints, run from the repository root by its own line."""
    paths = [str(SOURCE)]
    if path.stem in NEEDED:
        paths += vision_paths(NEEDED[path.stem])
    done = subprocess.run(
        shlex.split(command(path)), cwd=ROOT, check=False, capture_output=True, text=True,
        timeout=900,
        env={
            **os.environ,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
            "PYTHONPATH": os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")]),
            "PYTHONWARNINGS": ",".join(WARNINGS),
            "OMP_NUM_THREADS": "1",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def test_every_example_is_judged():
    assert sorted(GOOD) == [path.stem for path in FILES]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_how_to_run_it(path):
    assert len(path.read_text().splitlines()) < 60
    assert command(path).endswith(f" examples/{path.name}")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_example_is_in_the_guide(path):
    assert f"`examples/{path.name}`" in (ROOT / "docs" / "own-tools.md").read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
@pytest.mark.slow(reason="trains a network in a new process")
def test_an_example_prints_a_network_of_half_the_filters_that_is_as_good(path):
    found = {m[1]: m for m in map(LINE.match, run(path).splitlines()) if m}
    assert set(found) == {"before", "after"}
    before, after = found["before"], found["after"]
    kind, bound = GOOD[path.stem]
    assert before[2] == after[2] == kind
    if kind == "loss":
        assert float(after[3]) < bound
    else:
        assert float(after[3]) > bound
    assert int(after[4]) <= int(before[4]) / 2 + 0.5
    assert int(after[5].replace(",", "")) < 0.65 * int(before[5].replace(",", ""))
