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
