"""Two processes: the same λ, plan and weights on both, files from one, a result as of one."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dafp
from dafp.runs import pipeline
from support import ranks

pytestmark = pytest.mark.slow(reason="every test needs two or more processes with torch")
TESTS, SOURCE = Path(__file__).parents[1], Path(dafp.__file__).parents[1]


def launch(*command: str) -> subprocess.CompletedProcess[str]:
    """Two processes of a command."""
    path = [str(SOURCE), str(TESTS), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         *command],
        check=False, capture_output=True, text=True, timeout=900,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1",
             "ACCELERATE_USE_CPU": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """What each of two ranks saw, and the directory of their run."""
    out = tmp_path_factory.mktemp("two") / "run"
    launch(str(TESTS / "support/ranks.py"), str(out))
    seen = [json.loads(out.with_name(f"rank{n}.json").read_text()) for n in (0, 1)]
    assert [rank["world"] for rank in seen] == [2, 2]
    return seen, out


def test_both_ranks_have_the_same_penalty_and_sparsity_in_every_epoch(two):
    (first, second), _ = two
    assert len(first["rows"]) == 8 + 12
    assert first["rows"] == second["rows"]
    assert first["rows"][6]["penalty"] > 0


def test_both_ranks_have_the_same_plan(two):
    (first, second), out = two
    assert first["plan"] == second["plan"]
    kept = json.loads((out / "plan.json").read_text())["keep"]
    assert sum(len(channels) for channels in kept.values()) == 14  # 0.3 of 20 are gone


def test_both_ranks_have_the_same_weights_after_every_stage(two):
    (first, second), _ = two
    assert set(first["weights"]) == {"sparse", "finetune"}
    assert first["weights"] == second["weights"]


def test_both_ranks_return_the_same_result(two):
    def timeless(result):
        rows = [
            {k: v for k, v in s.items() if k not in ("latency_s", "speeds")}
            for s in result["stages"]
        ]
        return {**result, "stages": rows}

    (first, second), _ = two
    assert timeless(first["result"]) == timeless(second["result"])


def test_only_the_first_rank_writes(two):
    (first, second), _ = two
    assert {"model.safetensors", "plan.json", "metrics.jsonl"} <= set(first["written"])
    assert second["written"] == []


def test_two_processes_end_near_one(two, tmp_path, monkeypatch):
    (first, _), _ = two
    monkeypatch.setattr(pipeline, "load_data", ranks.load_data)
    alone = pipeline.run(ranks.CONFIG, tmp_path / "run")["stages"][-1]
    together = first["result"]["stages"][-1]
    assert alone["accuracy"] > 0.8  # chance is 0.25
    assert together["accuracy"] == pytest.approx(alone["accuracy"], abs=0.07)
    assert together["filters"] == alone["filters"] == 14


def test_only_rank_0_prints_and_the_unpruned_network_is_the_teacher_on_both_ranks(tmp_path):
    settings = ["width=0.0625", "baseline.epochs=1", "finetune.epochs=1", "threads=1", "images=400"]
    done = launch(
        "-m", "dafp", "run", "--model", "vgg11", "--out", str(tmp_path / "run"), "--distill",
        "--set", "method=one-shot", *(part for s in settings for part in ("--set", s)),
    )  # fmt: skip
    assert done.stdout.count("of the prunable filters removed") == 1
    assert done.stderr.count("finetune") == 1
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["sparsity"]["removed"] == pytest.approx(0.5, abs=0.02)
