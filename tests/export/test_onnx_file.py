"""Export to ONNX: equal to PyTorch for any batch size, folded where exact, refused where not."""

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import dafp
from dafp import cli
from dafp.errors import ExportError, ExtraError, FileError
from dafp.export import onnx_file, onnx_rewrites, output_check, to_onnx
from dafp.export.branches import BothWays
from dafp.models import build
from support import zoo
from support.slow import slow_except

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

# one of each corner that the exporter, the folding or the check treats in a way of its own;
# benchmarks/onnx_zoo.py does all of them
NETS = (
    "plain", "conv1d", "mlp", "transposed grouped", "pre-activation residual", "shuffle by hand",
    "fused attention", "index_select", "branch on values", "dict of inputs", "several outputs",
    "pools",
)  # fmt: skip


def pruned(net: zoo.Net) -> nn.Module:
    model, example = net.model(), net.example()
    graph = dafp.trace(model, example, **net.kwargs)
    scores = dafp.criteria.dependency_aware(model, graph)
    return dafp.prune(model, graph, dafp.selection.to_target(scores, graph, 0.5))


def operators(path: Path) -> list[str]:
    return [node.op_type for node in onnx.load(path).graph.node]


QUICK = ("plain", "pre-activation residual", "branch on values")
EACH = "3 s per exported network"

exports = pytest.mark.slow(reason=EACH)


@pytest.mark.parametrize("name", slow_except(QUICK, NETS, reason=EACH))
def test_the_file_computes_what_the_pruned_model_computes_on_any_batch(name, tmp_path):
    net = zoo.BY_NAME[name]
    path = tmp_path / "net.onnx"
    done = to_onnx(pruned(net), net.example(), path, fold_bn=True)
    assert set(done.gaps) == {"the example", "1 random rows", "3 random rows", "8 random rows"}
    assert max(done.gaps.values()) < 1e-4
    assert path.stat().st_size == done.size


def test_the_docs_count_every_net_of_the_zoo_and_all_of_them_agree():
    root = Path(__file__).parents[2]
    rows = json.loads((root / "benchmarks/results/onnx_zoo.json").read_text())
    assert set(rows) == set(zoo.BY_NAME), "run benchmarks/onnx_zoo.py: it adds what is missing"
    assert max(row["worst"] for row in rows.values()) < 1e-4
    assert f"All {len(rows)} networks" in (root / "docs/deploy.md").read_text()


# ---- folding -------------------------------------------------------------------------------------


@exports
def test_bn_is_folded_into_weight_and_bias_by_its_formula(tmp_path):
    conv, norm = nn.Conv2d(1, 1, 1, bias=False), nn.BatchNorm2d(1, eps=0.0)
    for tensor, value in (
        (conv.weight, 2.0), (norm.weight, 3.0), (norm.bias, 1.0), (norm.running_mean, 0.5),
        (norm.running_var, 4.0),
    ):  # fmt: skip
        tensor.data.fill_(value)
    path = tmp_path / "net.onnx"
    to_onnx(nn.Sequential(conv, norm), torch.ones(1, 1, 2, 2), path, fold_bn=True)
    numbers = [onnx.numpy_helper.to_array(t).item() for t in onnx.load(path).graph.initializer]
    assert operators(path) == ["Conv"]
    assert sorted(numbers) == [0.25, 3.0]  # (0 − 0.5) · 3/√4 + 1,  2 · 3/√4


def test_bn_stays_unless_folding_is_asked_for(tmp_path):
    done = to_onnx(zoo.plain(), torch.randn(2, 3, 8, 8), tmp_path / "net.onnx")
    assert done.nodes["BatchNormalization"] == 2


class SharedConv(nn.Module):
    """One convolution, called twice, with a BN of its own behind each call."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1, bias=bias)
        self.first, self.second = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        self.first.running_var.fill_(2.0)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.conv(torch.relu(self.first(self.conv(x)))))


@pytest.mark.parametrize("bias", [False, True])
def test_bn_is_folded_into_a_convolution_that_is_called_twice(bias, tmp_path):
    done = to_onnx(SharedConv(bias), torch.randn(2, 3, 4, 4), tmp_path / "net.onnx", fold_bn=True)
    assert (done.folded_norms, done.nodes) == (2, {"Conv": 2, "Relu": 1})


@exports
def test_folding_bn_keeps_names_of_inputs_and_outputs_and_gives_equal_bytes(tmp_path):
    model, example, names, data = SharedConv(True), torch.randn(2, 3, 4, 4), [], []
    for number, fold_bn in enumerate((False, True, True)):
        path = tmp_path / f"{number}.onnx"
        to_onnx(model, example, path, fold_bn=fold_bn)
        graph = onnx.load(path).graph
        names.append([value.name for value in (*graph.input, *graph.output)])
        data.append(path.read_bytes())
    assert names[0] == names[1]
    assert data[1] == data[2]


class ReadTwice(nn.Module):
    """The output of the convolution is consumed by BN and by the sum."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.bn(y) + y


@exports
def test_bn_is_not_folded_into_a_convolution_with_another_consumer(tmp_path):
    done = to_onnx(ReadTwice(), torch.randn(2, 3, 4, 4), tmp_path / "net.onnx", fold_bn=True)
    assert (done.folded_norms, done.nodes["BatchNormalization"]) == (0, 1)


SELECTIONS = 6  # five blocks behind the first, whose input nothing was added to, and the last BN


def preresnet(share: float = 0.5) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    model, example = build("preresnet20", width=0.5), torch.randn(2, 3, 16, 16)
    graph = dafp.trace(model, example)
    scores = dafp.criteria.random(model, graph)
    return dafp.prune(model, graph, dafp.selection.uniform(scores, share)), example


@exports
def test_feature_selections_are_folded_into_weights(tmp_path):
    done = to_onnx(*preresnet(), tmp_path / "net.onnx")
    assert (done.folded_selections, done.nodes.get("Gather")) == (SELECTIONS, None)


@pytest.mark.slow(reason="exports a PreResNet-20, 5 s")
def test_a_selection_of_few_channels_stays_a_gather(tmp_path):
    done = to_onnx(*preresnet(0.9), tmp_path / "net.onnx")
    assert (done.folded_selections, done.nodes["Gather"]) == (0, SELECTIONS)


@pytest.mark.slow(reason="exports a PreResNet-20, 5 s")
def test_on_request_selections_are_plain_gathers_with_constant_indices(tmp_path):
    done = to_onnx(*preresnet(), tmp_path / "net.onnx", selections="gather")
    graph = onnx.load(done.path).graph
    constants = {tensor.name for tensor in graph.initializer}
    gathers = [node for node in graph.node if node.op_type == "Gather"]
    assert len(gathers) == SELECTIONS
    assert all(node.input[1] in constants for node in gathers)
    assert not {"Shape", "Cast", "Where", "Expand"} & set(done.nodes)


@exports
def test_the_file_holds_no_paths_of_this_machine(tmp_path):
    net = zoo.BY_NAME["pre-activation residual"]
    done = to_onnx(pruned(net), net.example(), tmp_path / "net.onnx")
    assert str(Path(dafp.__file__).parent).encode() not in done.path.read_bytes()


# ---- branches ------------------------------------------------------------------------------------


class Nested(nn.Module):
    """Three ways: by the sum, then by the largest."""

    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x * 2 if x.max() > 5 else x * 3
        return -x


@pytest.mark.parametrize(("value", "wanted"), [(6.0, 12.0), (1.0, 3.0), (-1.0, 1.0)])
def test_both_ways_of_every_branch_are_computed_and_the_numbers_choose(value, wanted):
    assert BothWays(Nested())(torch.tensor([value])).tolist() == [wanted]


@exports
def test_an_exported_branch_follows_the_numbers_and_is_noted(tmp_path):
    done = to_onnx(Nested(), torch.ones(2, 3), tmp_path / "net.onnx")
    session = output_check.session_of(str(done.path))
    for value, wanted in ((6.0, 12.0), (1.0, 3.0), (-1.0, 1.0)):
        (given,) = session.run(None, output_check.feeds(session, torch.full((1, 3), value)))
        assert given.tolist() == [[wanted] * 3]
    assert "branches on numbers" in done.notes[0]
    assert "only the way that the batches of the check take was compared" in done.notes[0]


@pytest.mark.parametrize(
    "ask",
    [lambda x: x.mean().item() > 2, lambda x: (x > 2).all().item()],
    ids=["compared", "truth"],
)
@exports
def test_numbers_taken_out_by_item_decide_as_tensors_do(ask, tmp_path):
    model = zoo.Do(lambda x: x * x.max().item() if ask(x) else x + 1)
    done = to_onnx(model, torch.ones(2, 3), tmp_path / "net.onnx")
    session = output_check.session_of(str(done.path))
    for value, wanted in ((3.0, 9.0), (1.0, 2.0)):
        (given,) = session.run(None, output_check.feeds(session, torch.full((1, 3), value)))
        assert given.tolist() == [[wanted] * 3]


@exports
def test_the_short_way_of_an_early_exit_is_in_the_file(tmp_path):
    net = zoo.BY_NAME["early exit"]
    model = net.model()
    done = to_onnx(model, net.example(), tmp_path / "net.onnx")
    session, small = output_check.session_of(str(done.path)), net.example() * 0.01
    (given,) = session.run(None, output_check.feeds(session, small))
    torch.testing.assert_close(torch.as_tensor(given), model.eval()(small).detach())


@pytest.mark.parametrize("kind", [float, int])
def test_python_numbers_of_tensors_are_refused_with_what_to_write_instead(kind, tmp_path):
    model = zoo.Do(lambda x: x * 2 if kind(x.abs().mean()) < 1 else x)
    with pytest.raises(ExportError, match=rf"{kind.__name__}\(tensor\).*`if x\.mean\(\) < 0\.1:`"):
        to_onnx(model, torch.ones(2, 3), tmp_path / "net.onnx")


class BranchOfTwo(nn.Module):
    def forward(self, image: Tensor, other: Tensor) -> Tensor:
        return image + other if other.sum() > 0 else image


@exports
def test_a_branch_keeps_the_names_of_the_inputs_also_of_a_dict(tmp_path):
    example = {"other": torch.ones(2, 3), "image": torch.ones(2, 3)}
    done = to_onnx(BranchOfTwo(), example, tmp_path / "net.onnx")
    assert {given.name for given in onnx.load(done.path).graph.input} == {"image", "other"}


@exports
def test_a_forward_with_any_number_of_inputs_does_not_count_as_a_branch(tmp_path):
    example = (torch.ones(2, 3), torch.ones(2, 3))
    assert to_onnx(zoo.Do(torch.add), example, tmp_path / "net.onnx").notes == ()


WAYS = {
    "shape": (lambda x: x.mean(1, keepdim=True), lambda x: x),
    "type": (lambda x: x.long(), lambda x: x),
    "number of outputs": (lambda x: (x, x), lambda x: (x,)),
    "one or several": (lambda x: (x, x), lambda x: x),
    "none": (lambda x: None, lambda x: x),
    "Python number": (lambda x: (x, 1), lambda x: (x, 2)),
}


@pytest.mark.parametrize("unlike", WAYS)
@pytest.mark.parametrize("taken", [0, 1])
def test_ways_with_unlike_outputs_are_refused_whichever_is_taken(unlike, taken, tmp_path):
    ways = WAYS[unlike]
    model = zoo.Do(lambda x: (ways[taken] if x.sum() > 0 else ways[1 - taken])(x))
    with pytest.raises(ExportError, match=r"ways give unlike outputs: .* or .*same"):
        to_onnx(model, torch.ones(2, 3), tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


def test_an_output_of_another_type_than_pytorchs_is_reported():
    class Doubled:
        """ONNX Runtime with a session that gives float64."""

        def get_inputs(self):
            return [SimpleNamespace(name="x")]

        def run(self, _, feeds):
            return [feeds["x"].astype("float64")]

    with pytest.raises(ExportError, match=r"float64 \[2, 3\] instead of float32 \[2, 3\]"):
        output_check._gap(Doubled(), nn.Identity(), torch.ones(2, 3))


# ---- examples ------------------------------------------------------------------------------------


class Changing(nn.Module):
    """Normalises its input in place; the numbers decide how, so that they are looked at."""

    def forward(self, x: Tensor) -> Tensor:
        x.sub_(0.5).div_(0.25)
        return x.mul_(2) if x.sum() > 0 else x.neg_()


@pytest.mark.parametrize(
    "model",
    [
        zoo.Do(lambda x: x.sub_(0.5).div_(0.25) * 3),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(3, 4)),
        Changing(),
    ],
    ids=["normalised", "ReLU", "branch"],
)
@exports
def test_a_forward_that_changes_its_input_is_exported_and_the_example_stays(model, tmp_path):
    example = torch.tensor([[1.0, -2.0, 3.0], [4.0, 5.0, -6.0]])
    before = example.clone()
    done = to_onnx(model, example, tmp_path / "net.onnx")
    assert torch.equal(example, before)
    session = output_check.session_of(str(done.path))
    for batch in (before, -before):
        (given,) = session.run(None, output_check.feeds(session, batch))
        torch.testing.assert_close(torch.as_tensor(given), model(batch.clone()).detach())


@exports
def test_an_example_that_gives_one_tensor_twice_makes_two_inputs(tmp_path):
    x = torch.randn(2, 3)
    done = to_onnx(zoo.Do(torch.sub), (x, x), tmp_path / "net.onnx")
    assert len(onnx.load(done.path).graph.input) == 2


@pytest.mark.parametrize("rows", [1, 2])
@exports
def test_an_input_without_a_batch_axis_keeps_its_size(rows, tmp_path):
    model = zoo.Do(lambda x, scale: x * scale.view(1, 3, 1, 1))
    example = (torch.randn(rows, 3, 4, 4), torch.rand(3))
    done = to_onnx(model, example, tmp_path / "net.onnx")
    assert len(done.gaps) == 4
    sizes = [v.type.tensor_type.shape.dim[0] for v in onnx.load(done.path).graph.input]
    assert (sizes[0].dim_param, sizes[1].dim_value) == ("batch", 3)


@exports
def test_an_example_may_require_a_gradient(tmp_path):
    x, scale = torch.randn(2, 3, requires_grad=True), torch.rand(5, requires_grad=True)
    for example in ((x, scale), {"image": x, "other": scale}):
        done = to_onnx(ReadScale(), example, tmp_path / "net.onnx")
        assert len(done.gaps) == 4
    assert x.requires_grad


class ReadScale(nn.Module):
    def forward(self, image: Tensor, other: Tensor) -> Tensor:
        return image * other.sum()


# ---- the check -----------------------------------------------------------------------------------


@exports
def test_a_model_that_gives_minus_infinity_is_exported(tmp_path):
    off = torch.tensor([False, True, False])
    fill = zoo.Do(lambda x: x.masked_fill(off, -torch.inf))
    model = nn.Sequential(nn.Linear(99, 3), nn.Tanh(), fill)  # rounded in another way by ONNX
    assert max(to_onnx(model, torch.randn(2, 99), tmp_path / "net.onnx").gaps.values()) < 1e-4


INF = torch.inf


@pytest.mark.parametrize(
    ("ours", "theirs", "gap"),
    [
        ([-INF, 1.0], [-INF, 1.0], 0.0),
        ([-INF, 1.5, 4.0], [-INF, 1.0, 4.0], 0.125),  # of the largest that is finite
        ([INF, 1.0], [-INF, 1.0], INF),
        ([1.0, -INF], [-INF, 1.0], INF),
        ([3.0, 1.0], [-INF, 1.0], INF),
        ([torch.nan, 1.0], [0.0, 1.0], INF),
        ([True, False], [True, True], 1.0),
    ],
)
def test_a_difference_is_relative_to_the_largest_finite_output(ours, theirs, gap):
    assert output_check._difference(torch.tensor(ours), torch.tensor(theirs)) == gap


# ---- refusals ------------------------------------------------------------------------------------


def test_a_file_that_differs_from_pytorch_is_not_kept(tmp_path, monkeypatch):
    path = tmp_path / "net.onnx"
    path.write_bytes(b"what was there before")

    def fold_with_an_error(graph):
        folded = onnx_rewrites.fold_batch_norms(graph)
        conv = next(node for node in graph.graph if node.op_type == "Conv")
        weight = onnx_rewrites._numbers(conv.inputs[1])
        onnx_rewrites._set_constant(graph, conv, 1, weight * weight.dtype.type(1.001))
        return folded

    monkeypatch.setattr(onnx_file, "fold_batch_norms", fold_with_an_error)
    with pytest.raises(ExportError, match=r"differs from PyTorch on .*e-0\d of the largest"):
        to_onnx(zoo.plain(), torch.randn(2, 3, 8, 8), path, fold_bn=True)
    assert path.read_bytes() == b"what was there before"
    assert [p.name for p in tmp_path.iterdir()] == ["net.onnx"]


def test_a_forward_that_fixes_its_batch_is_refused_with_the_reason(tmp_path):
    model = nn.Sequential(zoo.Do(lambda x: x.view(2, 48)), nn.Linear(48, 5))
    with pytest.raises(ExportError, match="free batch size"):
        to_onnx(model, torch.randn(2, 3, 4, 4), tmp_path / "net.onnx")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["missing/net.onnx", "file/net.onnx", "folder"])
def test_a_destination_that_cannot_be_written_is_reported_before_the_work(
    place, tmp_path, monkeypatch
):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    monkeypatch.setattr(onnx_file, "cost", lambda *_: pytest.fail("the work was begun"))
    with pytest.raises(FileError, match=r"cannot write .*; give "):
        to_onnx(zoo.plain(), torch.randn(2, 3, 8, 8), tmp_path / place)
    assert sorted(p.name for p in tmp_path.rglob("*")) == ["file", "folder"]


def test_half_precision_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ExportError, match=r"model\.float\(\)\.cpu\(\)"):
        to_onnx(zoo.plain().half(), torch.randn(2, 3, 8, 8), tmp_path / "net.onnx")


def test_a_missing_extra_is_named_with_the_pip_command(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxscript.optimizer", None)
    with pytest.raises(ExtraError, match=r'pip install "dafp\[onnx\]"'):
        to_onnx(zoo.plain(), torch.randn(2, 3, 8, 8), tmp_path / "net.onnx")


@exports
def test_exporting_leaves_the_model_as_it_was(tmp_path):
    model = zoo.plain().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    to_onnx(model, torch.randn(2, 3, 8, 8), tmp_path / "net.onnx", fold_bn=True)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(before[name], t) for name, t in model.state_dict().items())


# ---- the command ---------------------------------------------------------------------------------


@pytest.mark.slow(reason="exports a PreResNet-20, 5 s")
def test_the_command_exports_a_pruned_file(tmp_path):
    small, out = tmp_path / "small.safetensors", tmp_path / "small.onnx"
    dafp.save(preresnet()[0], small)
    result = CliRunner().invoke(
        cli.app, ["export", str(small), "--out", str(out), "--fold-bn", "--json"]
    )
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert printed["folded_selections"] == SELECTIONS
    assert printed["folded_norms"] == 13  # bn2 and bn3 of six blocks, and the one behind the stem
    assert max(printed["gaps"].values()) < 1e-4
    assert out.stat().st_size == printed["bytes"]
