"""`dafp export --int8`: a file of 8 bits of a saved model, with the images that it names."""

import json

import pytest
import torch
from typer.testing import CliRunner

import dafp
from dafp import cli
from dafp.cli import export_int8
from dafp.models import build
from dafp.network.model_info import ModelInfo, with_info
from support.command_line import error_line

pytest.importorskip("onnxruntime")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A directory with a network for digits, as a run saves it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(export_int8, "SECONDS", 0.02)
    torch.manual_seed(0)
    info = ModelInfo(
        input=(3, 32, 32), mean=(0.3,) * 3, std=(0.32,) * 3, data="digits", classes=("0", "1")
    )
    dafp.save(with_info(build("resnet8", classes=10, width=0.25), info), "net.safetensors")
    return tmp_path


def invoke(*args):
    done = CliRunner().invoke(cli.app, [str(arg) for arg in args])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def test_a_saved_model_is_quantised_measured_and_used(here):
    shown = json.loads(
        invoke("export", "net.safetensors", "--int8", "--images", "64", "--floor", "0", "--json")
    )
    assert shown["file"] == "model.int8.onnx"
    assert shown["bytes"] == (here / "model.int8.onnx").stat().st_size < shown["float_bytes"]
    assert shown["images"] == 360
    assert shown["same_class"] > 0.8
    assert min(shown["latency_s"], shown["float_latency_s"], shown["speedup"]) > 0
    rows = json.loads(
        invoke("bench", "net.safetensors", "model.int8.onnx", "--runtime", "onnx", "--seconds",
               "0.02", "--json")
    )  # fmt: skip
    assert [row["ideal"] for row in rows] == [1.0, 1.0]
    from PIL import Image  # noqa: PLC0415

    Image.new("RGB", (32, 32), (200, 10, 10)).save("one.png")
    ours, theirs = (
        json.loads(invoke("predict", file, "one.png", "--json"))[0]["top"][0]
        for file in ("net.safetensors", "model.int8.onnx")
    )
    assert ours["index"] == theirs["index"]


def test_the_table_shows_both_files_side_by_side(here):
    shown = invoke("export", "net.safetensors", "--int8", "--floor", "0", "--out", "small.onnx")
    assert "360 test images of digits" in shown
    for words in ("accuracy", "bytes", "ms", "speed-up", "float", "int8", "the same class for"):
        assert words in shown
    assert "written to small.onnx" in shown


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--floor", "0.9"), "--floor concerns the quantised file: give --int8 as well"),
        (("--data", "digits", "--images", "9"), "--data and --images concern the quantised file"),
        (("--reduce-range",), "--reduce-range concerns the quantised file"),
        (("--int8", "--floor", "2"), "floor=2.0 is not a share between 0 and 1"),
        (("--int8", "--calibration", "best"), "calibration='best' is not known; choose one of"),
        (("--int8", "--images", "1"), "--images 1: at least 2 are needed"),
        (("--int8", "--mean", "0.1,0.1,0.1"), "--mean and --std belong together"),
        (("--int8", "--data", "nowhere"), "nowhere"),
    ],
)
def test_wrong_options_are_refused_in_one_line_and_nothing_is_written(here, args, words, capsys):
    assert words in error_line(["export", "net.safetensors", *args], capsys)
    assert not list(here.glob("*.onnx"))


def test_a_model_that_names_no_images_needs_data(here, capsys):
    line = error_line(["export", "resnet8", "--int8"], capsys)
    assert "which resnet8 does not name: give --data NAME or --data folder:DIR" in line


@pytest.mark.parametrize("data", ["folder:photos", "folder", "imagenet", "photos", "../photos"])
def test_a_directory_that_a_file_names_is_not_read(here, data, capsys, monkeypatch):
    (here / "photos/cat").mkdir(parents=True)
    monkeypatch.setattr(dafp.data.folders, "home", None)  # nothing looks for images
    info = ModelInfo(input=(3, 32, 32), data=data)
    dafp.save(with_info(build("resnet8", classes=10, width=0.25), info), "hostile.safetensors")
    line = error_line(["export", "hostile.safetensors", "--int8"], capsys)
    assert "which hostile.safetensors does not name: give --data NAME or --data folder:DIR" in line


@pytest.mark.parametrize("command", ["eval", "finetune", "sensitivity"])
def test_no_command_reads_a_directory_that_a_file_names(here, command, capsys, monkeypatch):
    monkeypatch.setattr(dafp.data.folders, "home", None)
    info = ModelInfo(input=(3, 32, 32), data="folder:/etc")
    dafp.save(with_info(build("resnet8", classes=10, width=0.25), info), "hostile.safetensors")
    line = error_line([command, "hostile.safetensors"], capsys)
    assert "there is no data set 'folder:/etc'" in line
