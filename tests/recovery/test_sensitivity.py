"""Sensitivity of each layer: the values, how they are reported, and what does not change."""

import dataclasses
import json

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dafp
from dafp.cli import app
from dafp.errors import DataError, FileError, ModelError
from dafp.recovery.sensitivity import RATIOS, LayerCurve, Sensitivity, layer_sensitivity
from dafp.recovery.sensitivity import sensitivity_from_json as from_json
from dafp.report import read_run, write_report, write_sensitivity
from dafp.report.sensitivity_map import heat_map
from dafp.runs import pipeline, saved_models
from dafp.training.config import Config, Schedule
from support import runs
from support.training import graph_of, tiny_data, tiny_net

X, Y = next(tiny_data(test=64).batches("test", batch_size=64))


def accuracy(net: nn.Module) -> float:
    net.eval()
    with torch.no_grad():
        return float((net(X).argmax(1) == Y).float().mean())


class TwoWays(nn.Module):
    """Everything passes `needed`; what `idle` makes is read by zeros."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.needed, self.idle = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 6, 3, padding=1)
        self.a, self.b = nn.Linear(8, 4), nn.Linear(6, 4)
        nn.init.zeros_(self.b.weight)

    def forward(self, x):
        needed, idle = self.needed(x).relu().mean((2, 3)), self.idle(x).relu().mean((2, 3))
        return self.a(needed) + self.b(idle)


def found_for(net: nn.Module, judge=accuracy, **options) -> Sensitivity:
    graph = graph_of(net)
    return layer_sensitivity(net, graph, dafp.criteria.l1_norm(net, graph), judge, **options)


def example() -> Sensitivity:
    return Sensitivity(
        0.9, (0.1, 0.5, 0.9),
        (LayerCurve("conv1", "filter", 4, (0, 2, 3), (0.9, 0.8, 0.3)),
         LayerCurve("conv2", "filter", 8, (1, 4, 7), (0.9, 0.9, None))),
        {"model": "vgg16", "data": "digits", "images": 120, "criterion": "l1_norm"},
    )  # fmt: skip


# ---- numbers -------------------------------------------------------------------------------------


def test_pruning_an_unused_layer_loses_nothing_and_pruning_a_used_one_does():
    net = TwoWays()
    out = net(X).detach()

    def agreement(masked: nn.Module) -> float:
        """1 where the answers are what they were."""
        return float((masked(X).detach() - out).abs().max() < 1e-6)

    curves = {layer.name: layer for layer in found_for(net, agreement).layers}
    assert set(curves) == {"needed", "idle"}
    assert curves["idle"].accuracy == (1.0,) * 9
    assert curves["needed"].accuracy == (0.0,) * 9  # round(0.1 · 8) = 1 channel goes at once
    assert curves["needed"].removed == (1, 2, 2, 3, 4, 5, 6, 6, 7)


@pytest.mark.parametrize("compensate", [False, True])
def test_every_number_is_that_of_the_masked_model(compensate):
    net = tiny_net(3)
    graph, scores = graph_of(net), dafp.criteria.l1_norm(net, graph_of(net))
    outputs = []

    def judge(masked: nn.Module) -> float:
        outputs.append(masked.eval()(X).detach())
        return len(outputs) / 100

    found = layer_sensitivity(
        net.eval(), graph, scores, judge, ratios=(0.3, 0.7), compensate=compensate
    )
    wanted = [net(X)] + [
        dafp.mask(
            net, graph, dafp.selection.uniform({name: scores[name]}, ratio), compensate=compensate
        )(X)
        for name in ("0", "3")
        for ratio in (0.3, 0.7)
    ]
    for mine, other in zip(outputs, wanted, strict=True):
        assert torch.equal(mine, other)
    assert [layer.accuracy for layer in found.layers] == [(0.02, 0.03), (0.04, 0.05)]


def test_the_model_stays_as_it_was():
    net = tiny_net(3)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    found_for(net, compensate=True)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_what_removes_no_channel_is_not_judged_again():
    judged = []
    found_for(
        tiny_net(widths=(2, 3)), lambda net: float(len(judged)) / 99 + (judged.append(1) or 0)
    )
    assert len(judged) == 1 + 1 + 2  # as it is; 1 of 2 channels; 1 and 2 of 3


def test_half_of_an_even_split_cannot_be_pruned_alone():
    class Split(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 4, 1), nn.Conv2d(3, 4, 1)
            self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            both = torch.cat([self.a(x), self.b(x)], 1).mean((2, 3))
            one, two = both.chunk(2, 1)
            return self.one(one) + self.two(two)

    net = Split()
    assert len(graph_of(net).groups) == 2
    found = found_for(net, ratios=(0.1, 0.5))
    assert [layer.accuracy[1] for layer in found.layers] == [None, None]
    assert [layer.removed for layer in found.layers] == [(0, 0), (0, 0)]
    assert [layer.accuracy[0] for layer in found.layers] == [found.accuracy] * 2


def test_validation_images_are_taken_evenly():
    data = tiny_data(val=16)
    few = data.fewer("val", 4)
    whole = torch.cat([x for x, _ in data.batches("val")])
    assert torch.equal(torch.cat([x for x, _ in few.batches("val")]), whole[[0, 4, 8, 12]])
    assert data.fewer("val", 99) is data
    assert few.sizes == {"train": 64, "val": 4, "test": 37}


# ---- on disk -------------------------------------------------------------------------------------


def test_what_is_written_is_read_again():
    assert from_json(example().to_json(), "here") == example()


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", example().to_json().replace("0.8", "8"),
             example().to_json().replace("[0, 2, 3]", "[0, 2]"),
             example().to_json().replace("[0.1, 0.5, 0.9]", "[0.1]", 1),
             example().to_json().replace("0.3", "NaN")],
)  # fmt: skip
def test_a_damaged_file_is_refused_by_its_name(text):
    with pytest.raises(FileError, match=r"sensitivity.json is damaged .*dafp sensitivity again"):
        from_json(text, "sensitivity.json")


def test_a_run_that_has_a_sensitivity_shows_it_in_its_report(tmp_path):
    run = runs.write_run(tmp_path / "run")
    assert "Sensitivity of the layers" not in write_report(run).read_text()
    write_sensitivity(example(), run)
    assert read_run(run).sensitivity == example()
    text = write_report(run).read_text()
    assert "Sensitivity of the layers" in text
    assert "Accuracy when one layer is pruned" in text


def test_a_cell_of_the_heat_map_lies_around_its_ratio_and_is_redder_where_more_is_lost():
    option = heat_map(example()).option
    base, *rows = option["series"]
    assert option["xAxis"]["data"] == ["conv1", "conv2"]
    heights = [base["data"][0], *(row["data"][0]["value"] for row in rows)]
    ends = [sum(heights[: n + 1]) for n in range(4)]
    assert ends == pytest.approx([-0.1, 0.3, 0.7, 1.1])
    cells = [row["data"][0] for row in rows]
    assert [cell["shown"] for cell in cells] == [0.9, 0.8, 0.3]
    colours = [cell["itemStyle"]["color"] for cell in cells]
    assert colours[0] == "@grid"  # no channel went there
    depth = [float(colour.rpartition(",")[2].rstrip(")")) for colour in colours[1:]]
    assert depth[1] > depth[0] > 0.03
    assert rows[2]["data"][1]["itemStyle"]["color"] == "@grid"  # unknown


# ---- the command ---------------------------------------------------------------------------------

CONFIG = Config(
    model="support.training:users_net", width=1.0, batch_size=16, threads=1, method="l1-norm",
    baseline=Schedule(4, 0.05), finetune=Schedule(2, 0.05),
)  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    monkeypatch.setattr(pipeline, "load_data", lambda *args, **kwargs: tiny_data())


def test_the_command_shows_a_run_by_table_page_and_report(tmp_path):
    out = tmp_path / "run"
    pipeline.run(CONFIG, out)
    args = ["sensitivity", str(out), "--set", "criterion=l2_norm"]
    done = CliRunner().invoke(app, args, env={"COLUMNS": "120"})
    assert done.exit_code == 0, done.output
    assert "only this layer is pruned" in done.stdout
    found = from_json((out / "sensitivity.json").read_text(), "it")
    assert [layer.channels for layer in found.layers] == [4, 6]  # the run's final model
    assert found.ratios == RATIOS
    assert found.about["criterion"] == "l2_norm"
    for page in ("sensitivity.html", "report.html"):
        assert "Sensitivity of the layers" in (out / page).read_text()


def test_json_for_scripts_is_what_is_on_disk(tmp_path):
    torch.manual_seed(0)
    weights = tmp_path / "weights.pt"
    torch.save(pipeline.make_model(CONFIG, 4).state_dict(), weights)
    args = ["sensitivity", "support.training:users_net", "--weights", str(weights), "--json",
            "--out", str(tmp_path / "out"), "--set", "criterion=l1_norm"]  # fmt: skip
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == json.loads((tmp_path / "out/sensitivity.json").read_text())
    assert json.loads(done.stdout)["about"]["criterion"] == "l1_norm"


def test_a_file_of_ours_is_tried(tmp_path):
    model = dafp.models.build("vgg11", classes=4, width=0.125)
    dafp.save(model, tmp_path / "m.safetensors")
    with pytest.MonkeyPatch.context() as patch:
        data = dataclasses.replace(tiny_data(), shape=(3, 32, 32))
        patch.setattr(pipeline, "load_data", lambda *args, **kwargs: data)
        patch.setattr(saved_models, "evaluate", lambda net, context, part: (0.5, 1.0))
        done = CliRunner().invoke(
            app, ["sensitivity", str(tmp_path / "m.safetensors"), "--json", "--out", str(tmp_path)]
        )
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["layers"]) == 8


@pytest.mark.parametrize(
    ("option", "words"),
    [(("--weights", "w.pt"), "so --weights cannot be used"), (("--width", "0.5"), "so --width"),
     (("--preset", "cifar10"), "its own configuration")],
)  # fmt: skip
def test_what_a_run_has_of_its_own_is_not_given_again(tmp_path, option, words):
    done = CliRunner().invoke(app, ["sensitivity", str(tmp_path), *option])
    assert words in str(done.exception)


def test_what_has_no_accuracy_to_lose_is_refused(tmp_path):
    done = CliRunner().invoke(app, ["sensitivity", "vgg16"])
    assert isinstance(done.exception, ModelError)
    (tmp_path / "run").mkdir()
    done = CliRunner().invoke(app, ["sensitivity", str(tmp_path / "run")])
    assert done.exit_code != 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "load_data", lambda *args, **kwargs: tiny_data(val=0))
        with pytest.raises(DataError, match="no validation images"):
            saved_models.try_layers(CONFIG, None, 0)
