"""`dafp reproduce`: every printed row has its configuration; jobs, estimates, page, errors."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch
from typer.testing import CliRunner

from dafp import cli, methods, reproduce
from dafp.data import NAMES as DATA
from dafp.errors import TrainingError
from dafp.methods import Task
from dafp.methods.slm import penalty_of
from dafp.models import build, is_ours
from dafp.reproduce import estimate as timing
from dafp.reproduce import find, jobs_of
from dafp.reproduce.estimate import Speed, epoch_seconds, estimate
from dafp.reproduce.page import answers, reproduction_page
from dafp.runs.job_hash import config_hash
from dafp.sweeps import Sweep, SweepPaths
from dafp.training.config import Config, Schedule
from support import paper_steps
from support.command_line import error_line
from support.paper_steps import paper_configs, take_step
from support.slow import slow_except
from support.sweep_records import record
from support.vision import vision_paths

PAPER = [
    (name, row) for name in reproduce.NAMES for row in find(name, "paper").rows
]  # fmt: skip


def configs(profile: str) -> list[Config]:
    return [
        figure.config
        for name in reproduce.NAMES
        for row in find(name, profile).rows
        for figure in row.figures
    ]


# ---- every row has its configuration -------------------------------------------------------------


def test_there_are_as_many_rows_as_the_paper_prints():
    assert {name: len(find(name, "paper").rows) for name in reproduce.TABLES} == {
        "cifar10": 30, "cifar100": 12, "svhn": 16, "imagenet": 22, "ablation-importance": 6,
        "ablation-lambda": 2, "ablation-scratch": 2, "ablation-stability": 4,
    }  # fmt: skip


@pytest.mark.parametrize("profile", reproduce.PROFILES)
def test_every_figure_of_every_row_has_a_configuration_of_known_parts(profile):
    for config in configs(profile):
        assert config.method in methods.METHODS
        assert config.data in DATA
        assert is_ours(config.model) or config.model in ("torchvision:resnet50",
                                                         "torchvision:resnet101")  # fmt: skip
        assert 0 < config.target < 1


@pytest.mark.parametrize("name", reproduce.NAMES)
@pytest.mark.parametrize("profile", reproduce.PROFILES)
def test_the_rows_of_an_item_have_names_of_their_own_and_numbers_to_reproduce(name, profile):
    rows = find(name, profile).rows
    assert len({row.name for row in rows}) == len(rows)
    assert all(row.figures for row in rows)


def test_the_paper_profile_has_the_settings_of_the_paper():
    config = find("cifar10", "paper", ["vgg16/dafp/0.6"]).rows[0].figures[0].config
    assert (config.step, config.p, config.width, config.val_share) == (1e-5, 0.01, 1.0, 0.0)
    assert (config.images, config.batch_size, config.compensate) == (0, 64, False)
    assert config.sparse == Schedule(160, 0.1, ())
    assert config.baseline == config.finetune == Schedule(160, 0.1, (0.5, 0.75), 0.1)


@pytest.mark.parametrize(("profile", "moves"), [("paper", False), ("lite", True)])
def test_the_paper_prunes_at_its_p_and_the_lite_profile_where_the_target_is_met(profile, moves):
    assert {c.move_p for c in configs(profile) if c.method == "dafp"} == {moves}


def test_rows_of_imagenet_compare_parameters_and_multiply_adds():
    item = find("imagenet", "paper", ["preresnet50/baseline", "preresnet50/dafp/0.5"])
    jobs = jobs_of(item, 1)
    row = record(jobs[0], 0.7)
    row["result"]["stages"][0] |= {"params": 25.5e6, "macs": 4.1e9}
    row["result"]["stages"][-1] |= {"params": 11e6, "macs": 1.9e9}
    found = answers(item, 1, Sweep({config_hash(jobs[0]): row}))
    assert [(a.figure.name, a.figure.printed, a.text) for a in found] == [
        ("accuracy", "76.27", "90.00"),
        ("parameters_(10⁷)", "2.56", "2.55"),
        ("multiply-adds_(10⁹)", "4.13", "4.10"),
        ("accuracy", "72.41", "70.00"),
        ("parameters_(10⁷)", "1.07", "1.10"),
        ("multiply-adds_(10⁹)", "1.86", "1.90"),
    ]
    assert found[-1].difference == pytest.approx(0.04)


def test_the_ablation_of_lambda_compares_the_p_that_was_found():
    item = find("ablation-lambda", "lite")
    each = {}
    for job, p in zip(jobs_of(item, 1), (0.012, 0.38), strict=True):
        row = record(job, 0.7)
        row["result"]["sparsity"]["found_p"] = p
        each[config_hash(job)] = row
    found = [a for a in answers(item, 1, Sweep(each)) if a.figure.name == "p"]
    assert [(a.figure.printed, a.text) for a in found] == [("0.01", "0.012"), ("0.41", "0.38")]


def test_slimming_has_the_penalty_of_its_own_code_not_the_papers_step():
    for name, penalty in (("vgg16/slm/0.6", 1e-4), ("preresnet56/slm/0.4", 1e-5)):
        config = find("cifar10", "paper", [name]).rows[0].figures[0].config
        assert penalty_of(Task(None, None, config, None)) == penalty


@pytest.mark.parametrize("profile", reproduce.PROFILES)
def test_methods_whose_original_keeps_the_constant_of_what_goes_are_compensated(profile):
    keep = {"sfp", "asfp", "fpgm", "bn-ista"}
    assert {c.method for c in configs(profile) if c.compensate} == keep
    assert {c.method for c in configs(profile) if not c.compensate}.isdisjoint(keep)


def test_rows_copied_from_sfp_and_fpgm_decay_their_weights_as_the_originals_do():
    for method in ("sfp", "asfp", "fpgm"):
        config = find("cifar10", "paper", [f"resnet56/{method}/0.4"]).rows[0].figures[0].config
        assert (config.weight_decay, config.batch_size) == (5e-4, 128)
        assert config.sparse == Schedule(200, 0.1, (0.3, 0.6, 0.8), 0.2)


def test_the_fixed_penalty_of_the_ablation_is_1e_5():
    config = find("ablation-lambda", "paper", ["2"]).rows[0].figures[0].config
    assert (config.method, config.step, config.target) == ("slm+da+local", 1e-5, 0.5)


def test_the_lite_profile_is_always_5000_images_of_cifar10():
    assert {(c.data, c.images, c.step if c.step != 1e-5 else "auto") for c in configs("lite")} == {
        ("cifar10", 5000, "auto")
    }
    assert {(c.model, c.width) for c in configs("lite")} == {
        ("vgg11", 0.25), ("vgg16", 0.25), ("vgg19", 0.25), ("preresnet20", 1.0), ("resnet20", 1.0),
    }  # fmt: skip
    assert {(c.sparse.epochs, c.finetune.epochs) for c in configs("lite")} == {(15, 10), (25, 10)}
    long = {c.method for c in configs("lite") if c.sparse.epochs == 25}
    assert long == {"sfp", "asfp", "fpgm"}  # no finetuning follows


def test_the_rate_falls_where_the_original_lets_it_fall_and_is_constant_for_dafp():
    for profile in reproduce.PROFILES:
        falls = {c.method for c in configs(profile) if c.sparse.milestones}
        assert falls == {"slm", "slm+da", "slm+da+local", "sfp", "asfp", "fpgm"}
    slm = find("cifar10", "paper", ["vgg16/slm/0.6"]).rows[0].figures[0].config
    assert slm.sparse == Schedule(160, 0.1, (0.5, 0.75), 0.1)


def test_printed_numbers_and_their_sources_are_kept():
    row = find("cifar10", "paper", ["vgg19/slm/0.7"]).rows[0]
    assert [(f.name, f.printed, f.mean) for f in row.figures] == [
        ("baseline", "93.53 ± 0.16", pytest.approx(0.9353)),
        ("finetune", "93.60 ± 0.16", pytest.approx(0.936)),
    ]
    assert row.note == "Liu et al. 2019 (rethinking)"
    collapsed = find("svhn", "paper", ["preresnet56/slm/0.8"]).rows[0].figures[1]
    assert (collapsed.printed, collapsed.mean) == ("N/A", None)


def test_the_stability_table_prints_each_run():
    accuracy, fewest = find("ablation-stability", "paper", ["2"]).rows[0].figures
    # (93.93 + 93.66 + 93.94 + 93.7 + 93.89) / 5 and (24 + 25 + 27 + 23 + 27) / 5
    assert (accuracy.mean, fewest.mean) == (pytest.approx(0.93824), pytest.approx(25.2))
    assert fewest.printed == "23 to 27"


def test_a_baseline_row_needs_no_job_of_its_own():
    item = find("imagenet", "paper", ["preresnet50/baseline", "preresnet50/dafp/0.5"])
    assert {f.stage for f in item.rows[0].figures} == {
        "baseline", "params of baseline", "macs of baseline"
    }  # fmt: skip
    assert len(jobs_of(item, 1)) == 1


def test_a_row_without_a_ratio_is_measured_by_its_multiply_adds():
    config = find("imagenet", "paper", ["resnet50/ssr-l20"]).rows[0].figures[0].config
    assert (config.unit, config.target) == ("macs", 0.54)  # 1 − 1.9 / 4.13


# ---- the paper's configurations train ------------------------------------------------------------

PARAMETERS = {  # in millions: as printed or published; VGG-11's printed size fits no known one
    "vgg11": 9.23, "vgg16": 14.72, "vgg19": 20.04, "vgg11-imagenet": 132.9, "resnet56": 0.855,
    "resnet110": 1.73, "preresnet20": 0.22, "preresnet56": 0.59, "preresnet110": 1.15,
    "preresnet164": 1.70, "preresnet50-imagenet": 25.6, "preresnet101-imagenet": 44.5,
    "torchvision:resnet50": 25.557, "torchvision:resnet101": 44.549,
}  # fmt: skip


def judge(name: str, classes: int, method: str, step: dict) -> None:
    features = 512 if name.startswith("vgg") else 256
    more = 90 * (features + 1) / 1e6 if classes == 100 else 0  # PARAMETERS are with ten
    assert step["params"] / 1e6 == pytest.approx(PARAMETERS[name] + more, rel=0.004)
    assert step["filters"] > 400
    assert step["finite"]
    assert step["moved"] == 1
    if method in ("dafp", "slm+da+local"):  # Algorithm 1: the first epoch raises λ by Δ
        assert step["penalty"] == 1e-5
    elif method in ("slm", "slm+da"):  # of the released code
        assert step["penalty"] == (1e-4 if name.startswith("vgg") else 1e-5)


OURS = [key for key in paper_configs() if key[1:] == (10, "dafp")]


@pytest.mark.parametrize(
    ("name", "classes", "method"),
    slow_except(OURS, sorted(paper_configs()), reason="networks of full size"),
)
def test_a_paper_configuration_builds_traces_and_takes_a_training_step(name, classes, method):
    judge(name, classes, method, take_step(paper_configs()[name, classes, method]))


@pytest.mark.slow(reason="ResNet-50 and ResNet-101 on images of 224×224")
def test_so_do_those_of_torchvisions_networks():
    """In a process that finds torchvision, which lies apart from all others: see Makefile."""
    paths = [*sys.path, *vision_paths()]
    done = subprocess.run(
        [sys.executable, paper_steps.__file__, "torchvision"], check=False, capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    methods_seen = {name: sorted(m for n, _, m, _ in found if n == name) for name, *_ in found}
    assert methods_seen == {
        "torchvision:resnet50": ["l1-norm", "ssr-l20", "ssr-l21", "taylor", "thinet"],
        "torchvision:resnet101": ["bn-ista", "taylor"],
    }
    for name, classes, method, step in found:
        judge(name, classes, method, step)


# ---- jobs and their time -------------------------------------------------------------------------


def test_jobs_are_the_configurations_times_the_runs_each_once():
    item = find("ablation-scratch", "lite")
    jobs = jobs_of(item, 2)
    assert len(jobs) == len(set(map(config_hash, jobs))) == 2 * 2 * 2  # methods, after, seeds
    assert sorted({job.seed for job in jobs}) == [0, 1]
    assert {job.after for job in jobs} == {"finetune", "scratch-E"}


def test_tables_that_ask_for_the_same_share_their_jobs():
    one, other = (
        {config_hash(c) for c in jobs_of(find(name, "lite", ["vgg16/*"]), 1)}
        for name in ("ablation-importance", "dynamics")
    )
    assert one == other


def test_an_estimate_counts_shared_trainings_once(tmp_path, monkeypatch):
    monkeypatch.setattr(timing, "measure", lambda config: Speed(0.01, 0.001))
    jobs = jobs_of(find("ablation-importance", "lite", ["vgg16/*"]), 1)
    found = estimate(jobs, SweepPaths(tmp_path, tmp_path))
    # one baseline, slm and slm+da train once, dafp for itself; three times finetuning
    assert (found.trainings, found.epochs) == (6, 15 + 2 * 15 + 3 * 10)
    each = 4500 * 0.01 + (500 + 5000) * 0.001
    assert found.seconds_s == pytest.approx(75 * each)
    assert found.epoch_s == {"vgg16 ×0.25 on cifar10": pytest.approx(50.5)}


def test_an_epoch_of_the_paper_is_the_whole_training_set():
    config = find("svhn", "paper").rows[0].figures[0].config
    assert epoch_seconds(config, Speed(0.01, 5.0)) == pytest.approx(732.57)


def test_the_least_time_per_image_of_a_training_step_and_of_a_forward_pass_counts(monkeypatch):
    # three steps: start, end of the training step, end of the forward pass
    times = iter([0.0, 6.4, 8.0, 10.0, 13.2, 14.0, 20.0, 29.6, 36.0])
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(times)))
    speed = timing.measure(Config(model="vgg11", width=0.1, data="cifar10"))
    assert (speed.train, speed.forward) == (pytest.approx(3.2 / 32), pytest.approx(0.8 / 32))


def test_a_step_is_measured_with_the_threads_and_the_precision_of_the_job(monkeypatch):
    seen, before = set(), torch.get_num_threads()

    def watched(name, **how):
        model = build(name, **how)
        model.register_forward_hook(
            lambda m, x, out: seen.add((torch.get_num_threads(), out.dtype))
        )
        return model

    monkeypatch.setattr(timing, "build", watched)
    job = Config(model="vgg11", width=0.1, data="cifar10", threads=before + 1, precision="bf16")
    timing.measure(job)
    assert seen == {(before + 1, torch.bfloat16)}
    assert torch.get_num_threads() == before


# ---- the page ------------------------------------------------------------------------------------


def small_item():
    item = find("cifar10", "lite", ["vgg16/*"])
    jobs = jobs_of(item, 2)
    records = {
        config_hash(job): record(
            job, 0.9 + 0.02 * job.seed, collapsed="a" if job.method == "slm" else ""
        )
        for job in jobs
    }
    return item, Sweep(records)


def test_ours_n_and_the_difference_stand_beside_the_printed_figure():
    item, done = small_item()
    by_name = {(a.row.name, a.figure.name): a for a in answers(item, 2, done)}
    ours = by_name["vgg16/dafp/0.6", "finetune"]
    assert (ours.figure.printed, ours.text, ours.ours.n) == ("93.70 ± 0.05", "91.00 ± 1.41", 2)
    assert ours.difference == pytest.approx(0.91 - 0.937)
    collapsed = by_name["vgg16/slm/0.6", "finetune"]
    assert (collapsed.text, collapsed.difference) == ("N/A", None)
    assert collapsed.collapsed == "2 of 2 collapsed: a"


def test_in_the_stability_table_a_collapsed_run_counts_with_its_accuracy_and_no_channels():
    item = find("ablation-stability", "lite", ["1"])
    jobs = jobs_of(item, 2)
    done = Sweep({config_hash(j): record(j, 0.0, collapsed="a") for j in jobs})
    accuracy, fewest = answers(item, 2, done)
    assert (accuracy.text, fewest.text) == ("25.00 ± 0.00", "0")
    assert (accuracy.difference, fewest.difference) == (pytest.approx(0.15), 0)


def test_the_page_is_honest_about_profile_changes_and_hardware():
    item, done = small_item()
    text = reproduction_page(item, "lite", 2, done, ["images=7"], "dafp reproduce cifar10")
    for words in ("compare orders, not values", "Changed for this run: images=7", "−2.70",
                  "abacus", "vgg16 ×0.25, cifar10, dafp r=0.6"):  # fmt: skip
        assert words in text
    assert re.search(r'(src|href)="https?:', text) is None


@pytest.mark.parametrize("name", reproduce.FIGURES)
def test_a_figure_of_the_paper_is_drawn(name):
    item = find(name, "lite")
    curves = {
        "sparse": {
            "penalty": [0.1, 0.2],
            "sparsity": [0.0, 0.4],
            "sparsity_bn_scale": [0.0, 0.1],
            "sparsity_dependency_aware": [0.0, 0.2],
            "val_accuracy": [0.5, 0.6],
        },
        "finetune": {"val_accuracy": [0.6, 0.7]},
    }
    done = Sweep({config_hash(j): record(j, 0.9) | {"curves": curves} for j in jobs_of(item, 1)})
    text = reproduction_page(item, "lite", 1, done)
    found = re.findall(r'<script type="application/json">(.*?)</script>', text)
    charts = [json.loads(one)["option"]["series"] for one in found]
    assert len(charts) == {"sensitivity": 2, "dynamics": 4, "architecture": 1}[name]
    if name == "dynamics":
        assert [p[:2] for p in charts[0][0]["data"]] == [[1, 0.1], [2, 0.2]]
        assert [(s["name"], s["data"][1][1]) for s in charts[1]] == [
            ("slm", 0.1), ("slm+da", 0.2), ("dafp", 0.4),
        ]  # fmt: skip
    if name == "architecture":
        assert [(s["name"], s["data"]) for s in charts[0]] == [
            ("before", [8, 12]), ("slm", [4, 3]), ("dafp", [4, 3]),
        ]  # fmt: skip


# ---- the command ---------------------------------------------------------------------------------


def invoke(*args: str) -> str:
    result = CliRunner().invoke(cli.app, ["reproduce", *args], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_the_list_names_everything_and_its_rows():
    names = [one["name"] for one in json.loads(invoke("--list", "--json"))]
    assert names == list(reproduce.NAMES)
    assert "cifar10" in invoke("--list")
    rows = json.loads(invoke("svhn", "--list", "--json"))
    assert rows[0]["row"] == "preresnet20/slm/0.2"
    assert rows[0]["printed"]["finetune"] == "95.82 ± 0.18"


def test_a_dry_run_tells_jobs_and_time_and_does_nothing(tmp_path):
    out = tmp_path / "out"
    text = invoke("dynamics", "--dry-run", "--runs", "1", "--rows", "*/slm*", "--out", str(out))
    assert text.count("to do  vgg16 cifar10 slm") == 2
    assert (
        "2 of 2 jobs to do: 4 training stages (shared ones counted once), 50 epochs, about" in text
    )
    assert "measured: vgg16 ×0.25 on cifar10" in text
    assert not out.exists()


def test_the_command_does_the_rows_and_then_knows_that_they_are_done(tmp_path):
    tiny = [
        f"--set={s}"
        for s in ("data=digits", "width=0.05", "images=96", "batch_size=16", "baseline.epochs=1",
                  "sparse.epochs=1", "finetune.epochs=1", "threads=1")
    ]  # fmt: skip
    call = ["architecture", "--rows", "vgg16/slm/*", "--runs", "1", "--out", str(tmp_path), *tiny]
    found = json.loads(invoke(*call, "--json"))
    assert [one["figure"] for one in found["figures"]] == ["before_finetune", "finetune"]
    text = (tmp_path / "architecture.html").read_text()
    assert "Changed for this run: data=digits" in text
    assert "threads=1" not in text.partition("How it was made")[0]
    told = json.loads(invoke(*call, "--dry-run", "--json"))
    assert (told["left"], told["jobs"][0]["done"]) == (0, True)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "give the name of a table or figure: cifar10, cifar100"),
        (["cifar"], "did you mean 'cifar10'? There are cifar10, cifar100, svhn,"),
        (["everything"], "There are cifar10, cifar100"),
        (["svhn", "--rows", "vgg16/*"], "its rows are 1 preresnet20/slm/0.2, 2 preresnet20/dafp"),
        (["svhn", "--profile", "large"], "there is no profile 'large'; choose paper or lite"),
        (["svhn", "--runs", "0"], "runs=0 must be at least 1"),
        (["svhn", "--set", "epoch=1"], "there is no setting epoch"),
        (["svhn", "--set", "root=nowhere"], "dafp data get cifar10"),
        (
            ["svhn", "--profile", "paper", "--set", "root=nowhere"],
            "there is no svhn in nowhere; download",
        ),
    ],
    ids=str,
)
def test_bad_input_is_one_line_that_lists_what_is_valid(args, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert words in error_line(["reproduce", *args], capsys)
    assert list(tmp_path.iterdir()) == []


def test_a_method_that_does_not_exist_yet_is_told_by_its_name(monkeypatch):
    others = {name: m for name, m in methods.METHODS.items() if name != "slm"}
    monkeypatch.setattr(methods, "METHODS", others)
    with pytest.raises(TrainingError, match="there is no method 'slm'"):
        estimate(jobs_of(find("dynamics", "lite"), 1), SweepPaths(None, None))


def test_with_settings_changes_every_configuration():
    item = reproduce.with_settings(find("dynamics", "lite"), {"images": 9}, "--set")
    assert {f.config.images for row in item.rows for f in row.figures} == {9}
    assert dataclasses.replace(item, rows=()) == dataclasses.replace(
        find("dynamics", "lite"), rows=()
    )
