"""What a file says about its model: written, kept, and never a way to import or open anything."""

import dataclasses
import json
import sys

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import dafp
from dafp.errors import FileError
from dafp.files import model_file
from dafp.files.weights import load_weights
from dafp.network.model_info import ModelInfo, info_of, with_info
from dafp.training.config import Config, to_toml
from support.command_line import error_line
from support.vision import vision_paths

BUILDER = """
from torch import nn
import pathlib
pathlib.Path(__file__).with_name("imported").touch()

def small(num_classes=4):
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(num_classes))

def net(num_classes=4):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, num_classes),
    )
"""


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """A module whose import leaves a trace, on the import path."""
    (tmp_path / "hostilenets.py").write_text(BUILDER)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield tmp_path
    sys.modules.pop("hostilenets", None)


def own_network(classes=4):
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, classes),
    )  # fmt: skip


def test_what_is_given_is_written_and_read_again_through_pruning_and_saving(tmp_path):
    model = dafp.models.build("vgg11", width=0.125, classes=3)
    names = ("ant", "bee", "cow")
    dafp.save(
        model, tmp_path / "a", input=(3, 32, 32), mean=(0.1, 0.2, 0.3), std=(1, 1, 1), classes=names
    )
    loaded = dafp.load(tmp_path / "a")
    info = info_of(loaded)
    assert (info.builder, info.input, info.classes) == ("vgg11", (3, 32, 32), names)
    assert info.arguments == {"classes": 3, "width": 0.125}
    small = dafp.slim(loaded, torch.zeros(1, 3, 32, 32), 0.5)
    dafp.save(small, tmp_path / "b", resize=40)
    again = dafp.load(tmp_path / "b")
    assert info_of(again) == dataclasses.replace(info, resize=40)
    assert sum(map(len, dafp.plan_of(again).keep.values())) == 172


def test_a_model_of_which_nothing_is_known_gives_the_bytes_of_before(tmp_path):
    dafp.save(own_network(), tmp_path / "a")
    assert "info" not in model_file.read(tmp_path / "a")[0]
    dafp.save(dafp.models.build("vgg11", width=0.125), tmp_path / "b")
    assert "info" not in model_file.read(tmp_path / "b")[0]


def test_an_own_builder_is_imported_only_with_trust(hostile):
    model = own_network()
    dafp.save(model, hostile / "a", builder="hostilenets:net", arguments={"classes": 4})
    with pytest.raises(FileError, match=r"'net' of the module 'hostilenets'.*trust=True.*--trust"):
        dafp.load(hostile / "a")
    assert not (hostile / "imported").exists()
    loaded = dafp.load(hostile / "a", trust=True)
    assert (hostile / "imported").exists()
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(loaded.eval()(x), model.eval()(x))


def test_an_instance_needs_no_trust_and_imports_nothing(hostile):
    dafp.save(own_network(), hostile / "a", builder="hostilenets:net")
    assert isinstance(dafp.load(hostile / "a", own_network()), nn.Sequential)
    assert not (hostile / "imported").exists()


@pytest.mark.parametrize(
    "builder",
    ["timm:hf-hub:someone/net", "timm:local-dir:/etc", "timm:../net", "timm:/etc/passwd",
     "torchvision:../x"],
)  # fmt: skip
def test_a_name_that_opens_a_path_or_an_address_is_not_a_registered_one(
    builder, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", [*sys.path, *vision_paths()])
    dafp.save(own_network(), tmp_path / "a", builder=builder)
    with pytest.raises(FileError, match="would import"):
        dafp.load(tmp_path / "a")


@pytest.mark.parametrize(
    "arguments", [{"pretrained": True}, {"checkpoint_path": "/etc/passwd"}, {"weights": "x"}]
)
def test_an_argument_that_is_no_size_is_not_passed(arguments, tmp_path):
    dafp.save(own_network(), tmp_path / "a", builder="torch.nn:Identity", arguments=arguments)
    with pytest.raises(FileError, match="only classes, channels and width are passed"):
        dafp.load(tmp_path / "a", trust=True)


@pytest.mark.parametrize(
    "entry",
    [{"input": [3, "x"]}, {"mean": 1.0}, {"std": [0.0]}, {"classes": [1]}, {"builder": 3}, [1]],
    ids=str,
)
def test_damaged_entries_are_refused(entry, tmp_path):
    from safetensors.torch import save as to_bytes  # noqa: PLC0415 - writes what save refuses to

    dafp.save(dafp.models.build("vgg11", width=0.125), tmp_path / "a")
    header, _ = model_file.read(tmp_path / "a")
    tensors = load_file(tmp_path / "a")
    header = {**header, "info": entry}
    header["digest"] = model_file.digest(header, tensors)
    (tmp_path / "b").write_bytes(to_bytes(tensors, {"dafp": json.dumps(header)}))
    with pytest.raises(FileError, match="what the file says about its model"):
        dafp.load(tmp_path / "b")


def test_entries_of_newer_versions_are_ignored():
    model = with_info(own_network(), ModelInfo(input=(3, 8, 8)))
    assert info_of(model).to_json() == {"input": [3, 8, 8]}


@pytest.mark.parametrize("more", [True, False])
def test_counters_of_batch_norm_may_be_missing_from_plain_weights_or_be_too_many(more, tmp_path):
    model, other = own_network(), own_network()
    weights = {k: v for k, v in other.state_dict().items() if not k.endswith("_tracked")}
    if more:
        weights["0.num_batches_tracked"] = torch.tensor(3)
    torch.save(weights, tmp_path / "weights.pth")
    load_weights(model, tmp_path / "weights.pth")
    assert torch.equal(model[0].weight, other[0].weight)
    del weights["0.weight"]
    torch.save(weights, tmp_path / "weights.pth")
    with pytest.raises(FileError, match=r"has no '0\.weight'"):
        load_weights(model, tmp_path / "weights.pth")


OPENED: list[str] | None = None


def _note_opened(event: str, args: tuple[object, ...]) -> None:
    if OPENED is not None and event in ("open", "os.listdir", "os.scandir", "socket.connect"):
        OPENED.append(str(args[0]))


sys.addaudithook(_note_opened)  # it cannot be removed again; without a list it does nothing


@pytest.fixture
def opened(monkeypatch):
    """The paths that are opened during the test."""
    monkeypatch.setattr(sys.modules[__name__], "OPENED", [])
    return OPENED


COMMANDS = {
    "inspect": (),
    "prune": ("--out", "out"),
    "sensitivity": (),
    "finetune": ("--out", "out"),
    "eval": (),
    "export": ("--out", "out"),
    "bench": (),
    "predict": ("secret/photo.png",),
}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    "builder", ["hostilenets:net", "timm:local-dir:secret", "timm:hf-hub:someone/secret"]
)
@pytest.mark.parametrize("in_run", [False, True], ids=["file", "run"])
def test_no_command_imports_or_opens_what_a_file_names_without_trust(
    command, builder, in_run, hostile, opened, monkeypatch, capsys
):
    monkeypatch.chdir(hostile)
    name = "a.safetensors"
    if in_run:  # the configuration of the run is harmless, the model in it is not
        (hostile / "run").mkdir()
        (hostile / "run/config.toml").write_text(to_toml(Config()))
        name = "run/model.safetensors"
    dafp.save(own_network(10), name, builder=builder, input=(3, 8, 8))
    opened.clear()
    given = "run" if in_run else name
    line = error_line([command, given, *COMMANDS[command]], capsys)
    module, _, function = builder.partition(":")
    assert f"{function!r} of the module {module!r}, which loading would import" in line
    assert not (hostile / "imported").exists()
    assert not (hostile / "out").exists()
    assert [path for path in opened if "secret" in path or "hostilenets" in path] == []


@pytest.mark.parametrize("command", ["eval", "finetune", "sensitivity"])
@pytest.mark.parametrize("data", ["secret", "folder:secret", 'digits"\nroot="secret'])
def test_a_path_in_place_of_the_data_set_is_not_opened(
    command, data, hostile, opened, monkeypatch, capsys
):
    monkeypatch.chdir(hostile)
    model = with_info(dafp.models.build("vgg11", width=0.125), ModelInfo("vgg11", data=data))
    dafp.save(model, "a.safetensors", input=(3, 32, 32))
    opened.clear()
    line = error_line([command, "a.safetensors", *COMMANDS[command]], capsys)
    assert "there is no data set" in line
    assert [path for path in opened if "secret" in path] == []
    assert not (hostile / "out").exists()


def test_a_teacher_is_not_imported_without_trust_either(hostile, monkeypatch, capsys):
    monkeypatch.chdir(hostile)
    dafp.save(dafp.models.build("vgg11", width=0.125), "a.safetensors")
    dafp.save(own_network(10), "b.safetensors", builder="hostilenets:net")
    line = error_line(
        ["finetune", "a.safetensors", "--distill", "b.safetensors", "--out", "out", "--data",
         "digits", "--set", "finetune.epochs=1", "--quiet"],
        capsys,
    )  # fmt: skip
    assert "which loading would import" in line
    assert not (hostile / "imported").exists()
    assert not (hostile / "out").exists()
