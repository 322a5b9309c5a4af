"""`dafp compare`: the numbers of its table by hand, collapses, the page, the command."""

import dataclasses
import json
import re

import pytest
import torch
from rich.console import Console
from safetensors.torch import save_file
from typer.testing import CliRunner

import dafp
from dafp import cli
from dafp.cli.compare import seed_list, shown_table, targets_of
from dafp.errors import PlanError, TrainingError
from dafp.models import build
from dafp.runs.job_hash import config_hash
from dafp.selection import Target
from dafp.sweeps import Sweep, SweepPaths, sweep
from dafp.sweeps.comparison import cells, comparison_page, entries, grid, to_json
from dafp.sweeps.statistics import outcome, spread
from dafp.training.config import Config, Schedule
from support.command_line import error_line
from support.sweep_records import record
from support.tiny_runs import use_tiny_data

BASE = Config(
    model="support.training:users_net", width=1.0, batch_size=16, threads=1,
    baseline=Schedule(1, 0.05), sparse=Schedule(1, 0.05, ()), finetune=Schedule(1, 0.05),
)  # fmt: skip


def swept(configs, records) -> Sweep:
    return Sweep({config_hash(c): r for c, r in zip(configs, records, strict=True)})


CONFIGS = grid(BASE, ["slm", "dafp"], [0.5], [0, 1, 2])
DONE = swept(
    CONFIGS,
    [
        record(CONFIGS[0], 0.0, collapsed="3"), record(CONFIGS[1], 0.0, collapsed="3"),
        record(CONFIGS[2], 0.0, collapsed="0"),
        record(CONFIGS[3], 0.90, pruned=0.4), record(CONFIGS[4], 0.92, pruned=0.5),
        record(CONFIGS[5], 0.94, pruned=0.6),
    ],
)  # fmt: skip


# ---- numbers -------------------------------------------------------------------------------------


def test_the_mean_and_sample_deviation_are_these():
    found = spread([0.90, 0.92, 0.94, None])
    assert (found.n, found.mean, found.std) == (3, pytest.approx(0.92), pytest.approx(0.02))
    assert found.percent() == "92.00 ± 2.00"


def test_one_run_has_no_deviation_and_none_has_no_mean():
    assert spread([0.5]).percent() == "50.00"
    assert spread([None]) is None


def test_a_job_gives_these_numbers():
    found = outcome(record(CONFIGS[3], 0.9))
    assert (found.baseline, found.sparse, found.pruned, found.final) == (0.9, 0.8, 0.5, 0.9)
    assert (found.macs, found.params, found.removed, found.fewest) == (0.4, 0.25, 0.5, 3)


def test_a_line_has_mean_deviation_and_what_is_left():
    line = [c if isinstance(c, str) else c.text for c in cells(entries(CONFIGS, DONE)[1])]
    assert line == [
        "dafp", "0.5", "90.00 ± 0.00", "50.00 ± 10.00", "92.00 ± 2.00", "3", "40.00 ± 0.00",
        "25.00 ± 0.00", "50.00 ± 0.00", "1 + 1",
    ]  # fmt: skip


def test_a_method_that_always_collapses_is_not_available_with_the_emptied_layers():
    cell = cells(entries(CONFIGS, DONE)[0])[4]
    assert (cell.text, cell.note) == ("N/A", "3 of 3 collapsed: 3, 0")


def test_a_method_that_collapses_once_has_the_mean_of_the_others_and_says_so():
    records = [record(CONFIGS[3], 0.9), record(CONFIGS[4], 0.0, collapsed="3"),
               record(CONFIGS[5], 0.8)]  # fmt: skip
    line = cells(entries(CONFIGS[3:], swept(CONFIGS[3:], records))[0])
    assert (line[4].text, line[4].note) == ("85.00 ± 7.07", "1 of 3 collapsed: 3")
    assert line[5] == "2"


def test_what_is_not_done_yet_is_a_gap_not_a_collapse():
    line = cells(entries(CONFIGS[3:], Sweep())[0])
    assert (line[4].text, line[5]) == ("–", "0")


def test_the_lines_for_scripts_hold_shares_and_where_each_seed_collapsed():
    slm, dafp = (to_json(one) for one in entries(CONFIGS, DONE))
    assert slm["accuracy"] is None
    assert slm["collapsed"] == {"0": "3", "1": "3", "2": "0"}
    assert dafp["accuracy"] == {"n": 3, "mean": pytest.approx(0.92), "std": pytest.approx(0.02)}
    assert [run["final"] for run in dafp["runs"]] == [0.90, 0.92, 0.94]


def test_the_page_has_table_curves_failures_and_hardware_and_loads_nothing():
    done = dataclasses.replace(DONE, failures={"x": "slm seed 7: <lost>"})
    text = comparison_page(BASE, entries(CONFIGS, done), done, "seed = 0", "dafp compare")
    for words in ("92.00 ± 2.00", "N/A", "3 of 3 collapsed: 3, 0", "&lt;lost&gt;", "abacus",
                  "3 threads", "torch 9.9", "multiply-adds left"):  # fmt: skip
        assert words in text
    assert re.search(r'(src|href)="https?:', text) is None


def test_the_curves_leave_a_gap_where_a_method_collapsed():
    text = comparison_page(BASE, entries(CONFIGS, DONE), DONE, "")
    chart = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', text)[0])
    slm, dafp = chart["option"]["series"][:2]
    assert slm["data"] == [[0.5, None, None]]
    assert dafp["data"][0][:2] == [0.5, pytest.approx(0.92)]


def test_what_is_left_of_given_weights_is_measured_by_the_whole_network(tmp_path, monkeypatch):
    """It trains no baseline: the network as given is the first line of its summary table."""
    use_tiny_data(monkeypatch)
    save_file(build(BASE.model, classes=4).state_dict(), tmp_path / "w.safetensors")
    base = dataclasses.replace(
        BASE, weights=str(tmp_path / "w.safetensors"), baseline=Schedule(0, 0.05)
    )
    configs = grid(base, ["l1-norm"], [0.5], [0])
    done = sweep(configs, SweepPaths(tmp_path, tmp_path / "results"))
    found = outcome(done.of(configs[0]))
    plan = json.loads((SweepPaths(tmp_path, tmp_path).run(configs[0]) / "plan.json").read_text())
    assert found.removed == 0.5
    assert found.macs == pytest.approx(plan["after"]["macs"] / plan["before"]["macs"])
    assert found.macs < 0.6
    assert found.baseline is not None


# ---- a real collapse -----------------------------------------------------------------------------


def test_slimming_that_leaves_one_filter_of_two_layers_is_a_collapse(tmp_path, monkeypatch):
    use_tiny_data(monkeypatch)
    configs = grid(BASE, ["slm"], [0.95], [0])
    done = sweep(configs, SweepPaths(tmp_path, tmp_path / "results"))
    (line,) = entries(configs, done)
    assert cells(line)[4].text == "N/A"
    assert line.outcomes[0].collapsed in ("0", "3")
    assert line.outcomes[0].fewest == 0
    assert sorted(row[2] for row in done.of(configs[0])["kept"]) == [0, 1]


# ---- what is asked -------------------------------------------------------------------------------


def test_the_grid_has_every_combination_once_in_order():
    configs = grid(BASE, ["slm", "dafp"], [0.3, 0.5], [4])
    assert [(c.method, c.target, c.seed) for c in configs] == [
        ("slm", 0.3, 4), ("slm", 0.5, 4), ("dafp", 0.3, 4), ("dafp", 0.5, 4),
    ]  # fmt: skip


FAIR = dataclasses.replace(
    BASE,
    baseline=Schedule(5),
    sparse=Schedule(15, 0.1, ()),
    finetune=Schedule(10, 0.2, (0.4,), 0.3),
)


def sparse_of(method):
    return grid(FAIR, [method], [0.5], [0])[0].sparse


@pytest.mark.parametrize("method", ["sfp", "asfp", "fpgm"])
def test_a_method_without_finetuning_has_the_epochs_of_both_and_a_falling_rate(method):
    assert sparse_of(method) == Schedule(25, 0.2, (0.4,), 0.3)


@pytest.mark.parametrize("method", ["slm", "slm+da", "slm+da+local"])
def test_the_rate_falls_in_the_training_of_slimming_as_in_its_original(method):
    assert sparse_of(method) == Schedule(15, 0.1, (0.4,), 0.3)


@pytest.mark.parametrize("method", ["dafp", "l1-norm", "taylor"])
def test_the_rate_of_the_other_methods_is_as_configured(method):
    assert sparse_of(method) == FAIR.sparse


def test_the_table_tells_the_epochs_that_each_method_had():
    configs = grid(FAIR, ["dafp", "sfp", "l1-norm", "taylor"], [0.5], [0])
    reported = [cells(one)[-1] for one in entries(configs, Sweep())]
    assert reported == ["15 + 10", "25", "5 + 10", "5 + 15 + 10"]


@pytest.mark.parametrize(
    ("after", "reported"), [("scratch-E", "10"), ("scratch-B", "10 ÷ MACs left")]
)
def test_of_a_network_trained_from_scratch_only_that_training_is_reported(after, reported):
    configs = grid(dataclasses.replace(FAIR, after=after), ["dafp"], [0.5], [0])
    assert [cells(one)[-1] for one in entries(configs, Sweep())] == [reported]


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (([], [0.5], [0]), "needs methods"), ((["slm"], [], [0]), "needs ratios"),
        ((["slm"], [0.5], []), "needs seeds"), ((["slm", "slm"], [0.5], [0]), "each only once"),
        ((["slm"], [1.5], [0]), r"target=1.5 must lie between 0 and 1"),
        ((["slim"], [0.5], [0]), r"method='slim' must be one of 'dafp', 'slm'"),
    ],
    ids=str,
)  # fmt: skip
def test_a_comparison_that_makes_no_sense_is_refused(asked, words):
    with pytest.raises(TrainingError, match=words):
        grid(BASE, *asked)


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-2", [0, 1, 2]), ("5", [5]), ("0, 3-4", [0, 3, 4]), ("", [])]
)
def test_seeds_are_written_like_this(text, seeds):
    assert seed_list(text) == seeds


def test_seeds_that_are_no_numbers_are_refused():
    with pytest.raises(TrainingError, match="write 0,1,2 or 0-2"):
        seed_list("many")


# ---- the command ---------------------------------------------------------------------------------

SMALL = (
    "compare", "--model", "vgg11", "--set", "width=0.05", "--set", "images=96",
    "--set", "batch_size=16", "--set", "baseline.epochs=1", "--set", "sparse.epochs=1",
    "--set", "finetune.epochs=1", "--set", "threads=1", "--ratios", "0.3", "--seeds", "0",
)  # fmt: skip


def test_the_command_writes_the_page_prints_the_table_and_goes_on_later(tmp_path):
    call = [*SMALL, "--methods", "slm,random", "--out", str(tmp_path)]
    first = CliRunner().invoke(cli.app, call, catch_exceptions=False)
    assert first.exit_code == 0
    assert "slm" in first.stdout
    assert (tmp_path / "index.html").stat().st_size > 10_000
    second = CliRunner().invoke(cli.app, [*call, "--json"], catch_exceptions=False)
    assert [e["method"] for e in json.loads(second.stdout)["entries"]] == ["slm", "random"]
    assert second.stderr == ""


def test_the_table_fits_a_terminal_of_80_columns(capsys):
    Console(width=80).print(shown_table(entries(CONFIGS, DONE)))
    out = capsys.readouterr().out
    assert "92.00 ± 2.00" in out
    assert "MACs left" in " ".join(out.split())
    assert "1 + 1" in out  # epochs of sparse training and fine-tuning


@pytest.mark.parametrize(
    ("target", "ratios", "found"),
    [
        (None, None, [Target("macs", share=0.3), Target("macs", share=0.5)]),
        (None, "0.4", [Target("macs", share=0.4)]),
        ("params=0.3, 0.5", None, [Target("params", share=0.3), Target("params", share=0.5)]),
        ("macs=2G,1G", None, [Target("macs", left=2e9), Target("macs", left=1e9)]),
        ("0.3,0.7", None, [Target("macs", share=0.3), Target("macs", share=0.7)]),
    ],
)
def test_targets_of_a_comparison_are_written_as_those_of_a_run(target, ratios, found):
    assert targets_of(target, ratios, "macs") == found


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("macs=0.3,params=0.5", "give one unit"), ("", "give one unit"),
        ("latency=0.5", "a comparison removes filters, params or macs"),
        ("speed=0.5", "is not a target"), ("macs=50", "; 50 % is 0.5"),
    ],
)  # fmt: skip
def test_targets_that_a_comparison_cannot_have_are_refused(target, words):
    with pytest.raises(PlanError, match=words):
        targets_of(target, None, "macs")


def test_a_comparison_by_amounts_removes_the_share_that_leaves_them(tmp_path):
    """A file chooses the unit of bare numbers."""
    file = tmp_path / "mine.toml"
    file.write_text('unit = "params"\n')
    call = [arg for arg in SMALL if arg not in ("--ratios", "0.3")]
    call += ["--methods", "random", "--out", str(tmp_path / "out"), "--json", "--config", str(file)]
    amount = CliRunner().invoke(cli.app, [*call, "--target", "macs=300k"], catch_exceptions=False)
    (entry,) = json.loads(amount.stdout)["entries"]
    whole = dafp.cost(build("vgg11", classes=10, width=0.05), torch.zeros(1, 3, 32, 32)).macs
    assert entry["macs"]["mean"] * whole == pytest.approx(300e3, rel=0.03)
    assert entry["ratio"] == pytest.approx(1 - 300e3 / whole)
    share = CliRunner().invoke(cli.app, [*call, "--target", "0.4"], catch_exceptions=False)
    (entry,) = json.loads(share.stdout)["entries"]
    assert entry["params"]["mean"] == pytest.approx(0.6, abs=0.03)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--methods", "slim"], "method='slim' must be one of"),
        (["--cpus", "4"], "give --ray"),
        (["--ratios", "half"], "'half' is not a number"),
        (["--ratios", ","], "--ratios ',' names no share"),
        (["--target", "macs=0.5"], "--target macs=0.5 says what to remove; leave --ratios out"),
        (["--data", "svhn", "--set", "root=nowhere"], "there is no svhn in nowhere; download"),
    ],
    ids=str,
)
def test_bad_input_is_one_line_and_exit_code_2(args, words, capsys, tmp_path):
    assert words in error_line([*SMALL, "--out", str(tmp_path / "out"), *args], capsys)
    assert not (tmp_path / "out").exists()
