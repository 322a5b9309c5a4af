"""The notebook in examples/: its cells run, and its outputs are those of a run."""

import os
import shutil
import subprocess
import sys

import pytest

from support import notebooks
from support.pages import ROOT

FILE = ROOT / "examples/own_network.ipynb"


def outputs(file) -> list[str]:
    cells = [c for c in notebooks.read(file)["cells"] if c["cell_type"] == "code"]
    return ["".join("".join(one["text"]) for one in cell["outputs"]) for cell in cells]


def test_the_notebook_is_small_and_was_run():
    assert FILE.stat().st_size < 20_000
    whole = outputs(FILE)
    assert len(whole) == 7
    assert [bool(text) for text in whole] == [True, False, True, True, True, True, True]
    assert "fine-tuned" in whole[3]


@pytest.mark.slow(reason="trains a network and starts a new process for every command")
def test_the_cells_of_the_notebook_run_and_print_the_same_sizes(tmp_path):
    again = shutil.copy(FILE, tmp_path / "again.ipynb")
    done = subprocess.run(
        [sys.executable, notebooks.__file__, again], check=False, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    committed, found = outputs(FILE), outputs(again)
    assert found[:3] == committed[:3]
    before, after, widths, report = found[4].splitlines()
    assert before == committed[4].splitlines()[0]
    whole, left = (int(line.split()[2].replace(",", "")) for line in (before, after))
    assert left / whole == pytest.approx(0.5, abs=0.05)
    assert (widths.count("("), report) == (3, "True")
    assert "differs from PyTorch by at most" in found[5]
    onnx, torch = found[6].split("runs/mine")
    rows = [[line for line in text.splitlines() if ".png" in line] for text in (onnx, torch)]
    assert len(rows[0]) == 3
    assert [row.split()[:2] for row in rows[0]] == [row.split()[:2] for row in rows[1]]
