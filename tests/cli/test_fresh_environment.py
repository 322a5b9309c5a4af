"""A new user on a fresh environment: own images, an own network or one of timm, commands only.

Each command runs once, in a process of its own. Nothing is passed that a file or a run knows,
except --trust.
"""

import json
from pathlib import Path

import pytest

from support.fresh_environment import FreshEnvironment
from support.pictures import draw_shapes

IMAGES = 200  # of each of three classes
NETWORK = """
from torch import nn

def small(num_classes=3):
    layers, channels = [], 3
    for width in (8, 16, 32):
        layers += [nn.Conv2d(channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
                   nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(channels, num_classes))
"""


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> FreshEnvironment:
    made = FreshEnvironment(tmp_path_factory.mktemp("fresh"), ("onnx",), vision=True)
    (made.work / "mynets.py").write_text(NETWORK)
    draw_shapes(made.work / "shapes", IMAGES)
    assert len(list((made.work / "shapes").rglob("*.png"))) == 600
    return made


@pytest.mark.slow(reason="installs dafp in a new environment and runs ten commands there, twice")
@pytest.mark.parametrize(
    ("model", "trust", "epochs", "least", "floor"),
    [
        ("mynets:small", ("--trust",), (6, 8, 3), 0.8, 0.9),
        ("timm:mobilenetv3_small_050", (), (2, 3, 1), 0.2, 0.0),  # too few epochs to learn much
    ],
    ids=["own", "timm"],
)
def test_a_new_user_goes_from_a_network_to_a_deployed_one_by_commands_alone(
    fresh, model, trust, epochs, least, floor
):
    name = model.partition(":")[2]
    mine, smaller, tuned = name, f"{name}-smaller.safetensors", f"{name}-tuned"
    schedule = [
        f"--set={stage}.epochs={count}"
        for stage, count in zip(("baseline", "sparse", "finetune"), epochs, strict=True)
    ]
    shown = fresh.run(
        "run", "--model", model, "--data", "folder:shapes", "--size", 32, "--skip-unreadable",
        "--target", "macs=0.5", *schedule, "--out", mine, "--json",
    )  # fmt: skip
    first, *_, last = json.loads(shown)["stages"]
    assert last["macs"] / first["macs"] == pytest.approx(0.5, abs=0.05)
    assert last["params"] < first["params"]

    found = json.loads(fresh.run("eval", mine, "--json"))
    assert found["accuracy"] == last["accuracy"] >= least
    assert found["images"] == 120

    pruned = json.loads(
        fresh.run("prune", mine, "--target", "macs=0.2", "--out", smaller, "--json")
    )
    assert pruned["before"]["macs"] == last["macs"]
    assert pruned["after"]["macs"] / last["macs"] == pytest.approx(0.8, abs=0.08)

    shown = fresh.run(
        "finetune", smaller, *trust, "--data", "folder:shapes", "--skip-unreadable",
        "--set=finetune.epochs=2", "--out", tuned, "--json",
    )  # fmt: skip
    again = json.loads(shown)
    assert [stage["stage"] for stage in again["stages"]] == ["given", "finetuned"]
    assert again["stages"][-1]["macs"] == pruned["after"]["macs"]
    assert again["stages"][-1]["accuracy"] >= least

    onnx = f"{name}.onnx"
    exported = json.loads(fresh.run("export", tuned, "--out", onnx, "--json"))
    assert max(exported["gaps"].values()) < 1e-4
    assert exported["macs"] == pruned["after"]["macs"]

    eight = f"{name}.int8.onnx"
    int8 = json.loads(
        fresh.run("export", tuned, "--int8", "--floor", floor, "--out", eight, "--json")
    )
    assert int8["accuracy"] >= floor * int8["float_accuracy"]
    assert int8["bytes"] == (fresh.work / eight).stat().st_size

    rows = json.loads(
        fresh.run("bench", mine, tuned, onnx, "--runtime", "onnx", "--seconds", 0.05, "--json")
    )
    assert [row["model"] for row in rows] == [mine, tuned, onnx]

    ours, theirs = (
        json.loads(fresh.run("predict", file, "shapes", "--skip-unreadable", "--json"))
        for file in (tuned, onnx)
    )
    assert len(ours) == 599
    for one, other in zip(ours, theirs, strict=True):
        assert one["image"] == other["image"]
        assert one["top"][0]["class"] == other["top"][0]["class"], one["image"]
        assert one["top"][0]["probability"] == pytest.approx(other["top"][0]["probability"], 1e-3)

    page = fresh.work / fresh.run("report", tuned).strip()
    assert page == fresh.work / tuned / "report.html"
    assert "<svg" in page.read_text() or "echarts" in page.read_text()
    assert Path(fresh.work / mine / "report.html").exists()
