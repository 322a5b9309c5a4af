"""`dafp run`: the whole way on the embedded digits by one command, and again."""

import json
import sys

import pytest
from typer.testing import CliRunner

import dafp
from dafp import cli
from dafp.cli import run_result
from dafp.runs import pipeline
from dafp.training.run_directory import Paths, read_config

SMALL = (
    "--model", "vgg11", "--set", "width=0.05", "--set", "images=96", "--set", "batch_size=16",
    "--set", "baseline.epochs=1", "--set", "sparse.epochs=2", "--set", "finetune.epochs=1",
    "--set", "threads=1", "--target", "0.4", "--seed", "3",
)  # fmt: skip


def invoke(*args: object):
    result = CliRunner().invoke(cli.app, [str(arg) for arg in args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def fail(capsys, *args: object) -> str:
    """One line on stderr, exit code 2, nothing on stdout."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dafp", *map(str, args)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    return err


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("command") / "run"
    return out, invoke("run", "--out", out, *SMALL)


def test_it_shows_the_stages_and_where_the_files_are(finished):
    out, shown = finished
    for stage in ("baseline", "sparse", "pruned", "fine-tuned"):
        assert stage in shown.stdout
    flat = shown.stdout.replace("\n", "")
    assert str(Paths(out).model) in flat
    assert (out / "report.html").stat().st_size > 10_000
    assert "asked at p=0.01" in shown.stdout


def test_it_applies_the_settings_of_the_command_line(finished):
    config = read_config(finished[0])
    assert (config.model, config.width, config.target, config.seed) == ("vgg11", 0.05, 0.4, 3)
    assert (config.sparse.epochs, config.sparse.lr) == (2, 0.05)


def test_the_model_loads_without_anything_else(finished):
    model = dafp.load(Paths(finished[0]).model)
    plan = dafp.plan_of(model)
    gone = sum(size - len(plan.keep[name]) for name, size in plan.sizes.items())
    assert gone == round(0.4 * sum(plan.sizes.values()))


@pytest.mark.parametrize("options", [(), SMALL], ids=["without options", "same options"])
def test_a_finished_run_shows_its_result_again_without_training(options, finished, monkeypatch):
    out, shown = finished
    monkeypatch.setattr(pipeline, "train_stage", None)  # nothing is trained
    assert invoke("run", "--out", out, *options).stdout == shown.stdout


def test_eval_of_a_run_takes_settings_and_refuses_another_configuration(finished, capsys):
    text = invoke("eval", finished[0], "--set", "batch_size=7", "--json").stdout
    accuracy = json.loads(Paths(finished[0]).result.read_text())["stages"][-1]["accuracy"]
    assert json.loads(text)["accuracy"] == accuracy
    error = fail(capsys, "eval", finished[0], "--preset", "cifar10-lite")
    assert "is a run with its own configuration; --set changes some of it" in error
    assert "cifar10" in fail(capsys, "eval", finished[0], "--set", "data=cifar10",
                             "--set", "root=nowhere")  # fmt: skip


def test_json_is_the_result_and_nothing_else(finished):
    out, _ = finished
    shown = invoke("run", "--out", out, "--json")
    assert json.loads(shown.stdout) == json.loads(Paths(out).result.read_text())


def test_another_setting_for_the_same_directory_is_refused_by_name(finished, capsys):
    out, _ = finished
    error = fail(capsys, "run", "--out", out, *SMALL, "--set", "p=0.02")
    assert "p: 0.01 → 0.02" in error


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--set", "sparse.epoch=3"), "did you mean sparse.epochs?"),
        (("--preset", "cifar"), "there is no preset 'cifar'"),
        (("--target", "1.5"), "'1.5': 1.5 is not between 0 and 1"),
        (("--model", "vgg12"), "no model 'vgg12'"), (("--data", "mnist"), "no data set 'mnist'"),
        (("--config", "nowhere.toml"), "no configuration nowhere.toml"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_one_line_of_error(options, reason, tmp_path, capsys):
    assert reason in fail(capsys, "run", "--out", tmp_path / "run", *options)


@pytest.mark.parametrize("wrong", ["model", "teacher"])
def test_a_mistyped_file_does_not_become_the_configuration(finished, tmp_path, capsys, wrong):
    files = {"model": Paths(finished[0]).pruned, "teacher": Paths(finished[0]).model}

    def command(model, teacher):
        return ("finetune", model, "--distill", teacher, "--out", tmp_path / "run", *SMALL[2:-4])

    error = fail(capsys, *command(**files | {wrong: tmp_path / "typo.safetensors"}))
    assert f"there is no file {tmp_path / 'typo.safetensors'}" in error
    assert "fine-tuned" in invoke(*command(**files)).stdout


def test_weights_that_are_not_there_do_not_become_the_configuration(tmp_path, capsys):
    error = fail(capsys, "run", "--out", tmp_path, *SMALL, "--set", "weights=typo.pt")
    assert "there is no file typo.pt" in error
    assert not Paths(tmp_path).config.exists()


def test_a_run_that_collapsed_names_no_model_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run_result, "write_report", lambda out: out / "report.html")
    stage = {"stage": "sparse", "accuracy": 0.5}
    result = {"stages": [stage], "sparsity": {}, "method": "slm", "collapsed": "features.3"}
    run_result.show_result(result, tmp_path, as_json=False)
    said = "".join(capsys.readouterr().out.split())
    assert "leftnothingoflayerfeatures.3" in said
    assert "report.html" in said
    assert "model.safetensors" not in said


@pytest.mark.parametrize(("low", "doubt"), [(1.1, ""), (0.9, ""), (1.1, "others used the CPU")])
@pytest.mark.parametrize("command", ["run", "prune"])
def test_run_and_prune_say_if_fewer_multiply_adds_are_not_faster(
    command, low, doubt, finished, tmp_path, monkeypatch, capsys
):
    measured = {"threads": 1, "latency_s": 1e-3, "speedup": 1.2, "low": low, "high": 1.3}
    measured["doubt"] = doubt
    if command == "run":
        monkeypatch.setattr(run_result, "write_report", lambda out: out / "report.html")
        result = json.loads(Paths(finished[0]).result.read_text())
        for stage in result["stages"]:
            stage["speeds"] = [measured]
        run_result.show_result(result, finished[0], as_json=False)
        said = capsys.readouterr().out
    else:
        monkeypatch.setattr("dafp.cli.prune.speeds", lambda *args: [measured, measured])
        out = tmp_path / "small.safetensors"
        model = ("preresnet11", "--target", "macs=0.4", "--out", out)
        said = invoke("prune", *model).stdout
        assert json.loads(invoke("prune", *model, "--json").stdout)["speed"] == measured
    said = " ".join(said.split())
    assert ("fewer multiply-adds are not faster here: 1.20×" in said) == (low < 1)
    assert ("too busy to tell if" in said) == bool(doubt)


FLOORS = ("--rule", "uniform", "--round-to", "4", "--min-channels", "6", "--set", "width=0.125")


def test_rule_widths_and_kept_layers_are_recorded_and_hold_after_an_interruption(
    tmp_path, monkeypatch
):
    options = (*SMALL, *FLOORS, "--keep", "features.4")
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    invoke("run", "--out", whole, *options)
    config = read_config(whole)
    assert (config.rule, config.round_to, config.min_channels) == ("uniform", 4, 6)
    assert config.keep == ("features.4",)
    layers = json.loads(Paths(whole).result.read_text())["layers"]
    widths = {row["name"]: (row["before"], row["after"]) for row in layers}
    assert "features.4" not in widths
    assert all(after % 4 == 0 and after >= 8 for _, after in widths.values())  # 6 → 8
    before, after = (sum(column) for column in zip(*widths.values(), strict=True))
    assert 1 - after / before == pytest.approx(0.4, abs=0.03)
    with monkeypatch.context() as patch:
        patch.setattr(pipeline, "prune_and_train", None)  # what comes after sparse training fails
        with pytest.raises(TypeError):
            invoke("run", "--out", stopped, *options)
    invoke("run", "--out", stopped)  # the directory knows the rest
    assert Paths(stopped).plan.read_bytes() == Paths(whole).plan.read_bytes()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("--round-to", "3.5"), "--round-to 3.5: give a whole number, at least 1, or 'auto'"),
        (("--round-to", "0"), "--round-to 0: give a whole number"),
        (("--set", "round_to=-1"), "round_to=-1 must be 'auto', or not negative"),
        (("--set", "round_to=even"), "round_to='even' must be a whole number or 'auto'"),
        (("--set", "min_channels=-2"), "min_channels=-2 must not be negative"),
        (("--rule", "best"), "rule='best' must be one of 'own', 'local_threshold', "),
        (("--rule", "uniform", "--set", "method=sfp"), "selects by a rule of its own; those that"),
        (("--round-to", "64"), "if every layer keeps a multiple of 64. Ask for less"),
        (("--keep", "nowhere"), "nowhere"),
        (("--target", "latency=10"), "--target 'latency=10': 10 is not between 0 and 1"),
        (("--target", "latency=10G"), "--target 'latency=10G' is not a target"),
        (("--target", "latency=0.5", "--runtime", "compile"), "runtime='compile' must be one of"),
        (("--runtime", "onnx"), "concern unit='latency'"),
    ],
)  # fmt: skip
def test_widths_and_rules_that_are_none_are_one_line_of_error(options, reason, tmp_path, capsys):
    assert reason in fail(capsys, "run", "--out", tmp_path / "run", *SMALL, *options)
    assert not (tmp_path / "run").exists()
