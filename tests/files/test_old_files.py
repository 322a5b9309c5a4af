"""Files written before the modules moved into packages: they are read, continued and reported.

`tests/fixtures/before_packages` holds a pruned PreResNet-20, a run that was interrupted after two
of four epochs of sparse training (`begun`), and what the same code made of it (`whole`).
"""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import dafp
from dafp import cli
from dafp.models import build
from dafp.network.model_info import ModelInfo, with_info
from dafp.runs.pipeline import run
from dafp.training.run_directory import read_config
from support.tiny_runs import timeless

OLD = Path(__file__).parents[1] / "fixtures/before_packages"
MADE = json.loads((OLD / "whole/made.json").read_text())
SAME_ARITHMETIC = (MADE["torch"], MADE["cpu_capability"]) == (
    torch.__version__,
    torch.backends.cpu.get_cpu_capability(),
)


def rows_of(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def facts(result: dict) -> dict:
    """A result without times, machine and versions."""
    return {k: v for k, v in timeless(result).items() if k not in ("machine", "versions")}


def without_info(file: Path) -> str:
    """The SHA-256 of a model file without what it states about its model: old files lack that."""
    model = dafp.load(file)
    with_info(model, ModelInfo())
    dafp.save(model, file.with_suffix(".again"))
    return hashlib.sha256(file.with_suffix(".again").read_bytes()).hexdigest()


@pytest.fixture(scope="module")
def continued(tmp_path_factory):
    """The interrupted run, continued by the code of today."""
    out = tmp_path_factory.mktemp("old") / "run"
    shutil.copytree(OLD / "begun", out)
    return out, run(read_config(out), out)


def test_an_old_model_file_loads_and_is_saved_again_to_the_same_bytes(tmp_path):
    fresh = build("preresnet20", classes=10, width=0.25)
    small = dafp.load(OLD / "pruned.safetensors", fresh)
    x = torch.zeros(1, 3, 32, 32)
    assert dafp.cost(small, x).macs <= 0.51 * dafp.cost(fresh, x).macs
    dafp.save(small, tmp_path / "again.safetensors")
    assert (tmp_path / "again.safetensors").read_bytes() == (
        OLD / "pruned.safetensors"
    ).read_bytes()


def test_an_old_run_is_continued_after_its_last_epoch(continued):
    out, _ = continued
    found, begun = rows_of(out), rows_of(OLD / "begun")
    assert found[: len(begun)] == begun  # with their times: nothing was trained again
    assert [(row["stage"], row["epoch"]) for row in found] == [
        (row["stage"], row["epoch"]) for row in rows_of(OLD / "whole")
    ]


def test_an_old_run_ends_as_well_as_it_did_before(continued):
    _, result = continued
    before = json.loads((OLD / "whole/result.json").read_text())
    assert result["sparsity"].pop("found_p") <= 0.01  # a field that old results lack
    assert result["sparsity"] == before["sparsity"]
    assert [stage["stage"] for stage in result["stages"]] == [s["stage"] for s in before["stages"]]
    assert [stage["accuracy"] for stage in result["stages"]] == pytest.approx(
        [stage["accuracy"] for stage in before["stages"]], abs=0.1
    )


@pytest.mark.skipif(not SAME_ARITHMETIC, reason="another torch or CPU rounds differently")
def test_an_old_run_ends_with_the_same_bits_where_arithmetic_is_the_same(continued):
    out, result = continued
    assert (out / "plan.json").read_bytes() == (OLD / "whole/plan.json").read_bytes()
    assert timeless(rows_of(out)) == timeless(rows_of(OLD / "whole"))
    assert facts(result) == facts(json.loads((OLD / "whole/result.json").read_text()))
    assert {name: without_info(out / name) for name in MADE["sha256"]} == MADE["sha256"]


def test_an_old_run_is_reported(continued):
    out, _ = continued
    done = CliRunner().invoke(cli.app, ["report", str(out)])
    assert done.exit_code == 0, done.output
    assert "preresnet20" in (out / "report.html").read_text()


def test_an_old_run_that_was_interrupted_is_reported_too(tmp_path):
    shutil.copytree(OLD / "begun", tmp_path / "run")
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path / "run")])
    assert done.exit_code == 0, done.output
    assert "preresnet20" in (tmp_path / "run/report.html").read_text()
