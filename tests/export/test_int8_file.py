"""Files of 8 bits: smaller, compared with the float file, refused below a floor."""

import json

import pytest
import torch
from torch import nn

import dafp
from dafp.errors import ExportError, FileError
from dafp.export import onnx_file, to_int8, to_onnx
from dafp.export.output_check import session_of
from dafp.latency.runtimes import cost_in
from dafp.network.model_info import ModelInfo, with_info

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

INFO = ModelInfo(
    builder="mynets:small", input=(3, 12, 12), mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6),
    classes=("ant", "bee", "cat", "dog"), data="folder", history=({"command": "run"},),
)  # fmt: skip


def network() -> nn.Module:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(32, 4),
    ).eval()  # fmt: skip
    return with_info(net, INFO)


def batches(count: int, seed: int) -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(seed)
    return [torch.randn(20, 3, 12, 12, generator=draw) for _ in range(count)]


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """A float file, and test images with the labels that PyTorch gives them."""
    net, path = network(), tmp_path_factory.mktemp("float") / "net.onnx"
    to_onnx(net, batches(1, 1)[0][:1], path, fold_bn=True)
    with torch.no_grad():
        labelled = [(x, net(x).argmax(1)) for x in batches(5, 2)]
    return path, labelled


def test_the_file_is_smaller_and_keeps_the_classes_of_the_float_file(case, tmp_path):
    source, labelled = case
    done = to_int8(source, tmp_path / "int8.onnx", batches(3, 3), labelled, floor=0.9)
    assert done.size == (tmp_path / "int8.onnx").stat().st_size
    assert done.nodes["Conv"] == 2
    assert done.nodes["QuantizeLinear"] >= 3
    weights = {
        tensor.data_type
        for tensor in onnx.load(tmp_path / "int8.onnx").graph.initializer
        if len(tensor.dims) == 4
    }
    assert weights == {onnx.TensorProto.INT8}
    assert (done.images, done.float_accuracy) == (100, 1.0)
    assert 0.9 <= done.accuracy == done.same_class
    assert 0 < done.difference < 0.1


def test_what_the_file_says_of_its_model_stays(case, tmp_path):
    source, labelled = case
    to_int8(source, tmp_path / "int8.onnx", batches(3, 3), labelled, floor=0.9)
    about = session_of(str(tmp_path / "int8.onnx")).get_modelmeta().custom_metadata_map
    info = onnx_file.info_in_onnx(about, tmp_path)
    assert [*info.to_json()] == [*INFO.to_json()]
    assert (info.mean, info.std, info.classes, info.input) == (
        INFO.mean, INFO.std, INFO.classes, INFO.input,
    )  # fmt: skip
    assert info.history[0] == {"command": "run"}
    assert info.history[1]["int8"]["images"] == 100
    assert cost_in(tmp_path / "int8.onnx") == cost_in(source)


def test_the_same_call_writes_the_same_bytes(case, tmp_path):
    source, labelled = case
    files = [tmp_path / "one.onnx", tmp_path / "other.onnx"]
    for file in files:
        to_int8(source, file, batches(3, 3), labelled, floor=0.9)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("calibration", ["percentile", "entropy"])
def test_other_calibrations_choose_other_ranges(case, tmp_path, calibration, capsys):
    source, labelled = case
    found = [
        to_int8(source, tmp_path / f"{name}.onnx", batches(3, 3), labelled, floor=0.8,
                calibration=name).path.read_bytes()
        for name in ("minmax", calibration)
    ]  # fmt: skip
    assert found[0] != found[1]
    assert capsys.readouterr().out == ""  # the quantiser's own progress


def test_weights_of_seven_bits_stay_within_64(case, tmp_path):
    source, labelled = case
    to_int8(source, tmp_path / "int8.onnx", batches(3, 3), labelled, floor=0.8, reduce_range=True)
    for tensor in onnx.load(tmp_path / "int8.onnx").graph.initializer:
        if len(tensor.dims) == 4:
            assert abs(onnx.numpy_helper.to_array(tensor)).max() == 64


def test_below_the_floor_nothing_is_written(case, tmp_path):
    source, labelled = case
    path = tmp_path / "int8.onnx"
    path.write_bytes(b"of before")
    too_small = [1e-3 * x for x in batches(3, 3)]  # activations of real images are clipped
    with pytest.raises(ExportError, match=r"the floor is 0\.98, so no file was written") as error:
        to_int8(source, path, too_small, labelled)
    assert "of 100 test images correctly instead of 100.00%" in str(error.value)
    assert "'percentile' or 'entropy'" in str(error.value)
    assert path.read_bytes() == b"of before"
    assert [file.name for file in tmp_path.iterdir()] == ["int8.onnx"]
    assert to_int8(source, path, too_small, labelled, floor=0).accuracy < 0.98


def test_without_labels_the_floor_is_the_share_of_equal_classes(case, tmp_path):
    source, labelled = case
    images = [x for x, _ in labelled]
    done = to_int8(source, tmp_path / "int8.onnx", batches(3, 3), images, floor=0.9)
    assert (done.accuracy, done.float_accuracy) == (None, None)
    assert done.kept == done.same_class >= 0.9
    too_small = [1e-3 * x for x in batches(3, 3)]
    with pytest.raises(ExportError, match="of 100 test images the class of float"):
        to_int8(source, tmp_path / "int8.onnx", too_small, images)


def test_wrong_arguments_are_refused_each_with_its_sentence(case, tmp_path):
    source, labelled = case
    out, images = tmp_path / "int8.onnx", batches(1, 3)
    wrong = [
        ({"floor": 1.5}, "floor=1.5 is not a share between 0 and 1"),
        ({"floor": float("nan")}, "floor=nan is not a share"),
        ({"calibration": "best"}, "calibration='best' is not known; choose one of minmax"),
        ({"images": []}, "no images to choose the ranges of activations by"),
        ({"test": []}, "no test images to compare"),
        ({"images": [torch.randn(2, 3, 8, 8)]}, "the images are [3, 8, 8]; give images of that"),
        ({"images": [torch.randn(2, 8)]}, "the images are [8]; give images of that"),
        ({"test": [(images[0], torch.full((20,), 7))]}, "knows 4 classes, the test images have"),
    ]
    for changes, words in wrong:
        given = {"images": images, "test": labelled, **changes}
        with pytest.raises(ExportError) as error:
            to_int8(source, out, **given)
        assert words in str(error.value)
    with pytest.raises(FileError, match="there is no file"):
        to_int8(tmp_path / "nothing.onnx", out, images, labelled)
    with pytest.raises(FileError, match="it is a directory"):
        to_int8(source, tmp_path, images, labelled)
    assert not out.exists()


def test_a_quantised_file_is_not_quantised_again(case, tmp_path):
    source, labelled = case
    done = to_int8(source, tmp_path / "int8.onnx", batches(3, 3), labelled, floor=0.9)
    with pytest.raises(ExportError, match="is quantised already; give the float file"):
        to_int8(done.path, tmp_path / "again.onnx", batches(3, 3), labelled)


def test_networks_without_classes_are_refused(tmp_path):
    images = batches(1, 3)
    to_onnx(nn.Conv2d(3, 4, 3), images[0][:1], tmp_path / "net.onnx")
    with pytest.raises(ExportError, match="so outputs must be images × classes"):
        to_int8(tmp_path / "net.onnx", tmp_path / "int8.onnx", images, images)
    assert not (tmp_path / "int8.onnx").exists()


def test_a_pruned_network_is_quantised_too(tmp_path):
    net, example = network(), batches(1, 1)[0][:1]
    graph = dafp.trace(net, example)
    plan = dafp.selection.to_target(dafp.criteria.l2_norm(net, graph), graph, 0.5, unit="macs")
    small = dafp.prune(net, graph, plan)
    assert plan.after.macs / plan.before.macs == pytest.approx(0.5, abs=0.1)
    to_onnx(small, example, tmp_path / "small.onnx", fold_bn=True)
    done = to_int8(tmp_path / "small.onnx", tmp_path / "int8.onnx", batches(3, 3), batches(5, 2),
                   floor=0.8)  # fmt: skip
    shapes = [
        list(tensor.dims)
        for tensor in onnx.load(done.path).graph.initializer
        if len(tensor.dims) == 4
    ]
    assert sum(shape[0] for shape in shapes) < 48
    known = json.loads(session_of(str(done.path)).get_modelmeta().custom_metadata_map["dafp"])
    assert known["macs"] == plan.after.macs
