"""What a beginner types by mistake: one line that says what to type instead."""

import pytest
from PIL import Image

from support.command_line import error_line


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A directory of images, of which one is damaged, a network, and an ONNX file's name."""
    for name in ("cat", "dog"):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / "photos" / name / f"{number}.png")
    (tmp_path / "photos/cat/0.png").write_bytes(b"junk")
    (tmp_path / "nets_of_a_beginner.py").write_text("def small(): ...")
    (tmp_path / "small.onnx").write_bytes(b"")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("run --data photos", "for the directory of this name: folder:photos"),
        ("run --set epochs=5", "each stage has its own: baseline.epochs, sparse.epochs"),
        ("run --model nothere:net --data folder:photos", "cannot import 'nothere'"),
        ("run --model nets_of_a_beginner:smal --data folder:photos", "has no function 'smal'"),
        ("run --model nets_of_a_beginner --data folder:photos", "package.module:function"),
        ("run --model nets_of_a_beginner:small --data folder:photos", "--skip-unreadable"),
        ("prune runs/nothere --target macs=0.5", "there is no run runs/nothere; give the direct"),
        ("export small.onnx", "small.onnx is an ONNX file, which only dafp predict and dafp bench"),
        ("eval small.onnx", "give the .safetensors file or the run that it was exported from"),
        ("finetune small.onnx", "small.onnx is an ONNX file"),
        (
            "eval vgg16",
            "vgg16 without --weights has random weights, so there is nothing to measure",
        ),
        ("settings epohcs", "no setting contains 'epohcs'; dafp settings lists all of them"),
        ("methods l3", "no method contains 'l3'; dafp methods lists all of them"),
    ],
    ids=lambda value: value if " " in value and len(value) < 60 else "",
)
def test_a_wrong_command_says_what_to_type_instead(args, words, capsys):
    assert words in error_line(args.split(), capsys)
