"""YOLO through ultralytics' own trainer: pruned, trained, loaded and exported, never rebuilt."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dafp
from dafp.errors import ExtraError
from support.vision import vision_paths

SOURCE = Path(dafp.__file__).parents[1]
STEPS = Path(__file__).parents[1] / "support" / "yolo_steps.py"


def facts_of(step, folder):
    """What a step of support/yolo_steps.py found, in a process that finds ultralytics."""
    paths = [str(SOURCE), *vision_paths("ultralytics"), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, str(STEPS), step, str(folder)], check=False, capture_output=True,
        text=True, timeout=900, cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads(done.stdout.splitlines()[-1])
    assert facts.pop("tried") == []  # nothing wanted to reach the network
    return facts


OTHERS = ("segment", "pose", "obb", "classify", "detect:11", "detect:26")


@pytest.mark.parametrize(
    "task",
    [
        "detect",
        *(
            pytest.param(task, marks=pytest.mark.slow(reason="a process of its own, as detect"))
            for task in OTHERS
        ),
    ],
)
def test_a_pruned_yolo_stays_pruned_through_training_loading_and_export(task, tmp_path):
    facts = facts_of(f"whole_route:{task}", tmp_path)
    assert facts["left"] == pytest.approx(0.5, abs=0.03)
    assert facts["groups"] > 10
    assert facts["trained"] == facts["loaded"] == facts["left"]
    assert facts["same plan"]
    assert facts["same weights"]
    assert facts["plain"]
    assert not facts["knows dafp"]
    assert 0 <= facts["metric"] <= 1
    assert facts["onnx"] < 1e-4
    assert "train it with dafp.integrations.ultralytics.YOLO" in facts["stock trainer"]


@pytest.mark.slow(reason="trains a network in a new process")
def test_sparse_training_in_ultralytics_own_trainer_ends_in_a_network_of_the_target(tmp_path):
    facts = facts_of("sparse_training", tmp_path)
    assert facts["epochs"] == [1, 2, 3, 4]
    assert facts["reached"][0] < facts["reached"][-1] == pytest.approx(0.5, abs=0.1)
    assert facts["left"] == pytest.approx(0.5, abs=0.1)
    assert facts["columns"] == [
        f"sparsity/{name}" for name in ("penalty", "sparsity", "target", "aim", "filters")
    ]
    assert facts["hooks"] == 0
    assert facts["after"] == 4  # fine-tuning is not sparse


@pytest.mark.slow(reason="trains networks in a new process")
def test_interrupted_trainings_go_on_from_ultralytics_own_checkpoints(tmp_path):
    facts = facts_of("resumed_training", tmp_path)
    assert facts["resumed"][:2] == facts["whole"][:2]
    assert [record["epoch"] for record in facts["resumed"]] == [1, 2, 3, 4]
    assert facts["resumed"][-1]["sparsity"] == pytest.approx(0.5, abs=0.1)
    assert "was written without a SparsityCallback" in facts["without state"]
    assert facts["resumed pruned"] == 1


def test_what_cannot_be_done_is_refused_with_what_to_do_instead(tmp_path):
    facts = facts_of("bad_input", tmp_path)
    old = facts.pop("old")
    written = f"ultralytics {old} wrote it; try: pip install ultralytics=={old}."
    for case, words in {
        "other version": ("FileError", "other.pt cannot be loaded by ultralytics", "X2f", written),
        "cut": ("FileError", "cut.pt cannot be loaded", "It is damaged"),
        "head": ("ModelError", "yolov8n-world.yaml ends in the head 'WorldDetect'", "Segment"),
        "no task": ("ModelError", "rtdetr-l.yaml is not an architecture of the tasks detect"),
        "fused": ("ModelError", "no batch normalisation left", "Load the checkpoint again"),
        "classes": ("TrainingError", "has 2 classes, the data 3", "then prune it"),
        "pretrained": ("TrainingError", "leave pretrained=True"),
        "data": ("DataError", "none.yaml' cannot be read"),
        "not pruned": ("PlanError", "not pruned"),
        "no report": ("PlanError", "not a result of slim()"),
        "too early": ("TrainingError", "before yolo.train(...)"),
        "time": ("TrainingError", "does not work with time=0.1: give epochs="),
        "steps": ("TrainingError", "accumulates 8 batches", "an epoch has 3", "nbs=8"),
        "freeze": ("TrainingError", "freeze=2"),
        "unit": ("TrainingError", "target=2.0"),
    }.items():
        found = facts.pop(case)
        assert [word for word in words if word not in found] == [], f"{case}: {found}"
    assert facts == {}


@pytest.mark.slow(reason="a process of its own, as detect")
def test_calibration_images_come_from_the_data_set_that_trains_it(tmp_path):
    facts = facts_of("calibrated", tmp_path)
    assert facts["left"] == pytest.approx(0.7, abs=0.03)
    assert facts["shapes"] == [[8, 3, 64, 64]]
    assert 0 <= facts["range"][0] < facts["range"][1] <= 1
    assert facts["same"]
    assert facts["rebuilt"] < facts["as cut"]


def test_without_ultralytics_the_import_names_the_extra(monkeypatch):
    monkeypatch.delitem(sys.modules, "dafp.integrations.ultralytics", raising=False)
    monkeypatch.setitem(sys.modules, "ultralytics", None)
    with pytest.raises(ExtraError, match=r'pip install "dafp\[ultralytics\]"'):
        importlib.import_module("dafp.integrations.ultralytics")
