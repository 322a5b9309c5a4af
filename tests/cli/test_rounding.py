"""Multiply-adds are removed in blocks of channels, which compute faster, unless told otherwise."""

import json

import pytest
from typer.testing import CliRunner

from dafp import cli
from dafp.cli import run_result
from dafp.cli.setting_options import all_settings, rounded, target_settings
from dafp.cli.target_options import floors_from_options, target_from_options
from dafp.training.config import make_config
from dafp.training.run_directory import Paths, read_config

VGG = ("prune", "vgg11", "--width", "0.5", "--target")  # widths 32, 64, 128, 256


def invoke(*args: object) -> str:
    done = CliRunner().invoke(cli.app, [str(arg) for arg in args], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize(
    ("options", "step"),
    [
        (("macs=0.5",), 16),
        (("macs=20M",), 16),
        (("macs=0.5", "--round-to", "1"), 1),
        (("macs=0.5", "--rule", "uniform"), 1),
        (("params=0.5",), 1),
        (("params=0.5", "--round-to", "auto"), 16),
    ],
    ids=str,
)
def test_prune_rounds_widths_for_multiply_adds_and_says_so(options, step, tmp_path):
    out = ("--out", tmp_path / "small.safetensors")
    plan = json.loads(invoke(*VGG, *options, *out, "--json"))["plan"]
    left = [len(kept) for name, kept in plan["keep"].items() if len(kept) < plan["sizes"][name]]
    assert left
    assert all(width % 16 == 0 for width in left) == (step == 16)
    said = " ".join(invoke(*VGG, *options, *out).split())
    assert ("widths are multiples of 16, which computes faster; --round-to 1" in said) == (
        step == 16
    )


@pytest.mark.parametrize(
    ("settings", "target", "found"),
    [
        ([], "macs=0.5", "auto"),
        ([], "macs=2M", "auto"),
        ([], "filters=0.5", 0),
        ([], "0.5", 0),
        ([], None, 0),
        (["unit=macs"], "0.5", "auto"),
        (["unit=macs"], None, 0),  # as in configurations that are there already
        (["round_to=4"], "macs=0.5", 4),
        (["rule=uniform"], "macs=0.5", 0),
    ],
)
def test_a_run_rounds_widths_for_a_target_of_multiply_adds(settings, target, found):
    given = all_settings(settings, **target_settings(target, settings))
    assert rounded(make_config("digits", None, given), target).round_to == found


def test_widths_are_free_where_a_rule_is_to_choose_them():
    goal = target_from_options("macs=0.5", None, None)
    assert floors_from_options(goal, None, None, by_rule=False) == {"round_to": "auto"}
    assert floors_from_options(goal, None, 4, by_rule=True) == {"min_channels": 4}
    assert floors_from_options(goal, "8", None, by_rule=True) == {"round_to": 8}


def test_a_run_chooses_the_step_by_the_network_and_says_it(tmp_path, capsys):
    out = tmp_path / "run"
    invoke(
        "run", "--model", "vgg11", "--target", "macs=0.4", "--out", out, "--set", "width=0.25",
        "--set", "images=96", "--set", "batch_size=16", "--set", "threads=1",
        "--set", "baseline.epochs=1", "--set", "sparse.epochs=1", "--set", "finetune.epochs=1",
    )  # fmt: skip
    assert read_config(out).round_to == "auto"
    result = json.loads(Paths(out).result.read_text())
    widths = [(row["before"], row["after"]) for row in result["layers"]]
    assert any(after < before for before, after in widths)
    assert all(after == before or after % 8 == 0 for before, after in widths)
    first, *_, last = result["stages"]
    assert last["macs"] / first["macs"] == pytest.approx(0.6, abs=0.06)
    run_result.show_result(result, out, as_json=False)
    assert "widths are multiples of " in capsys.readouterr().out
