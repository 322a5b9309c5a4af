"""All methods behind the seam: a short run of each, interrupted as well, and what they share."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

import dafp
from dafp import choices, methods
from dafp.errors import TrainingError
from dafp.runs import pipeline
from dafp.runs.pipeline import run
from dafp.selection import local_threshold, removed_share, uniform
from dafp.training.config import Config, Schedule
from dafp.training.loop import NoProgress
from dafp.training.run_directory import read_config
from support.slow import slow_except
from support.tiny_runs import StopError, use_tiny_data
from support.training import tiny_data, tiny_net

CONFIG = Config(
    model="support.training:users_net", width=1.0, batch_size=16, threads=1,
    baseline=Schedule(2, 0.05), sparse=Schedule(4, 0.05, ()), finetune=Schedule(1, 0.05),
)  # fmt: skip
ROOT = Path(__file__).parents[2]
OWN_NETWORK = [name for name in methods.METHODS if name != "morphnet"]  # it needs a width
QUICK = ("dafp", "slm", "l1-norm", "sfp", "taylor", "ssr-l21")  # one of each kind


class Stopped(NoProgress):
    """Stops a run in the middle of sparse training (or of pruning, where there is none)."""

    def epoch(self, row) -> None:
        if (row["stage"], row["epoch"]) == ("sparse", 2):
            raise StopError

    def say(self, text) -> None:
        raise StopError


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    use_tiny_data(monkeypatch)


@pytest.mark.parametrize("name", slow_except(QUICK, OWN_NETWORK, reason="three runs each"))
def test_a_short_run_removes_the_share_asked_for_and_a_restart_gives_the_same(name, tmp_path):
    settings = dataclasses.replace(CONFIG, method=name)
    result = run(settings, tmp_path / "whole")
    assert "collapsed" not in result
    assert result["sparsity"]["removed"] == 0.5
    stages = {stage["stage"]: stage for stage in result["stages"]}
    last = "finetuned" if methods.find(name).finetunes else "pruned"
    assert stages[last]["filters"] == 10
    assert stages[last]["params"] < stages["baseline"]["params"]
    with pytest.raises(StopError):
        run(settings, tmp_path / "stopped", Stopped())
    again = run(settings, tmp_path / "stopped")
    assert [s.get("accuracy") for s in again["stages"]] == [
        s.get("accuracy") for s in result["stages"]
    ]
    for file in ("plan.json", "pruned.safetensors", "model.safetensors"):
        assert (tmp_path / "stopped" / file).read_bytes() == (
            tmp_path / "whole" / file
        ).read_bytes()


@pytest.mark.parametrize(
    "name", [n for n in OWN_NETWORK if methods.find(n).train and not n.startswith("slm")]
)
def test_a_methods_training_arrives_by_itself(name, tmp_path):
    """What pruning then removes is what training chose; Slimming, its λ fixed, has no aim."""
    settings = dataclasses.replace(CONFIG, method=name, sparse=Schedule(8, 0.05, ()))
    result = run(settings, tmp_path / "run")
    assert abs(result["sparsity"]["reached"] - 0.5) <= 0.03
    assert result["sparsity"]["removed"] == 0.5


@pytest.mark.parametrize("name", slow_except(QUICK, OWN_NETWORK, reason="a run each"))
def test_every_method_keeps_the_widths_that_the_run_is_told(name, tmp_path):
    settings = dataclasses.replace(CONFIG, method=name, round_to=4, min_channels=3)
    plan = run(settings, tmp_path / "run")
    widths = [row["after"] for row in plan["layers"]]
    assert all(width % 4 == 0 for width in widths), widths
    assert plan["sparsity"]["removed"] in (0.4, 0.6)  # of 8 and 12 filters; a half is no multiple
    assert read_config(tmp_path / "run") == settings


@pytest.mark.parametrize("name", ["l1-norm", "activation-norm", "one-shot", "dafp"])
def test_another_rule_than_the_methods_own_is_followed(name):
    net = tiny_net(widths=(16, 32))
    graph = dafp.trace(net, torch.zeros(1, 3, 8, 8))
    plans = []
    for rule in ("uniform", "global_ranking"):
        settings = dataclasses.replace(CONFIG, method=name, rule=rule)
        task = methods.Task(net, graph, settings, tiny_data())
        plan = graph.resolve(methods.find(name).plan(task))
        assert removed_share(graph, plan, "filters") == 0.5
        plans.append([len(plan.keep[group.name]) for group in graph.groups])
    assert plans[0] == [8, 16]
    assert plans[1] != [8, 16]
    settings = dataclasses.replace(CONFIG, method=name, rule="local_threshold")
    assert methods.Task(net, graph, settings, tiny_data()).rule(uniform) is local_threshold


def test_a_method_with_a_rule_of_its_own_refuses_another():
    with pytest.raises(TrainingError, match="method='sfp' selects by a rule of its own"):
        dataclasses.replace(CONFIG, method="sfp", rule="uniform")


def test_widths_that_leave_the_target_out_of_reach_are_refused_before_training(tmp_path):
    settings = dataclasses.replace(CONFIG, round_to=8, target=0.5)  # of 8 and 12, 8 and 8
    with pytest.raises(TrainingError, match=r"at most 0\.2000 .* keeps a multiple of 8"):
        run(settings, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("unit", ["params", "macs"])
@pytest.mark.parametrize("name", ["slm", "slm+da"])
def test_slimming_removes_the_share_of_the_unit_it_was_asked_for(name, unit):
    net = tiny_net(widths=(16, 32))
    graph = dafp.trace(net, torch.zeros(1, 3, 8, 8))
    settings = dataclasses.replace(CONFIG, method=name, target=0.5, unit=unit)
    plan = methods.find(name).plan(methods.Task(net, graph, settings, tiny_data()))
    assert removed_share(graph, graph.resolve(plan), unit) == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("name", ["slm", "slm+da"])
def test_a_global_ranking_that_empties_a_layer_is_a_collapse_that_names_it(
    name, tmp_path, monkeypatch
):
    def lopsided(settings, classes):
        """Scales of the first layer are so small that a global ranking takes them all."""
        torch.manual_seed(0)
        model = dafp.models.build(settings.model, classes=classes)
        with torch.no_grad():
            model[1].weight.fill_(1e-6)
        return model

    monkeypatch.setattr(pipeline, "make_model", lopsided)
    settings = dataclasses.replace(CONFIG, method=name, sparse=Schedule(1, 1e-9, ()))
    result = run(settings, tmp_path / "run")
    assert result["collapsed"] == "0"
    assert json.loads((tmp_path / "run" / "plan.json").read_text())["keep"]["0"] == []
    assert not (tmp_path / "run" / "model.safetensors").exists()


@pytest.mark.parametrize(
    "name", [n for n, m in methods.METHODS.items() if m.train is None or m.from_baseline]
)
def test_what_needs_a_trained_network_refuses_to_start_without_one(name, tmp_path):
    settings = dataclasses.replace(CONFIG, method=name, baseline=Schedule(0))
    with pytest.raises(TrainingError, match=f"{name} prunes a trained network"):
        run(settings, tmp_path / "run")


def test_the_configuration_knows_every_method_and_no_other():
    assert tuple(methods.METHODS) == choices.METHODS


def test_an_unknown_method_is_refused_with_the_nearest_name_and_all_others():
    words = r"no method 'fgpm'; did you mean 'fpgm'\? There are dafp, slm, .*, random"
    with pytest.raises(TrainingError, match=words):
        methods.find("fgpm")


CARDS = [*methods.METHODS, "scratch"]


@pytest.mark.parametrize("name", CARDS)
def test_every_method_has_a_card_that_says_how_to_use_it_and_where_we_deviate(name):
    text = (ROOT / "docs" / "methods" / f"{name}.md").read_text(encoding="utf-8")
    for heading in (
        "## What",
        "## Formula",
        "## Use",
        "## Suggested values",
        "## Where we deviate",
    ):
        assert heading in text, heading
    setting = "after=scratch-" if name == "scratch" else f"method={name}"
    assert f"--set {setting}" in text


@pytest.mark.parametrize("name", CARDS)
def test_every_method_is_in_the_list_of_the_documentation(name):
    index = ROOT / "docs" / "methods" / "index.md"
    assert f"[`{name}`]({name}.md)" in index.read_text("utf-8")
