"""What a training run shows while it runs, on a terminal and elsewhere."""

import dataclasses
import io

import pytest
import torch
from rich.console import Console

from dafp.cli.progress import TerminalProgress, numbers_of, summary_table
from dafp.runs.pipeline import run
from support import runs
from support.command_line import error_line
from support.tiny_runs import CONFIG, uninterrupted, use_tiny_data
from support.training import tiny_data

ROW = {
    "stage": "sparse", "epoch": 3, "epochs": 40, "loss": 1.2345, "val_accuracy": 0.912,
    "penalty": 1.2e-4, "sparsity": 0.31, "aim": 0.305, "epoch_s": 3.2,
}  # fmt: skip


def console(terminal: bool, width: int = 100) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=width, color_system=None)


def shown(out: Console) -> str:
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_without_a_terminal_each_epoch_is_one_plain_line():
    out = console(terminal=False)
    with TerminalProgress(console=out) as progress:
        progress.stage("sparse", epochs=40, steps=2)
        for _ in range(6):
            progress.step(2.0)
        progress.epoch(ROW)
    [line] = shown(out).splitlines()
    assert line.startswith(
        "sparse 3/40  λ 1.20e-04  P 31.0 % (target 30.5 %)  loss 1.234  val accuracy 91.2 %  "
        "3.2 s  "
    )
    assert line.endswith(" left")


def test_on_a_terminal_the_bar_shows_stage_epoch_and_numbers():
    out = console(terminal=True)
    with TerminalProgress(console=out) as progress:
        progress.stage("sparse", epochs=40, steps=2)
        progress.epoch(ROW)
    assert "epoch 4/40" in shown(out)
    assert "P 31.0 % (target 30.5 %)" in shown(out)


def test_a_resumed_stage_counts_what_was_done_before():
    out = console(terminal=True)
    with TerminalProgress(console=out) as progress:
        progress.stage("finetune", epochs=30, steps=10, done=12)
        progress.step()
        assert progress.bars.tasks[0].completed == 120
        assert progress.counted == 121
    assert progress.bars.tasks[0].completed == 121


def test_time_left_is_estimated_from_the_steps_of_this_process(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("dafp.cli.progress.time.monotonic", lambda: now[0])
    out = console(terminal=False)
    with TerminalProgress(console=out) as progress:
        progress.stage("baseline", epochs=10, steps=5, done=8)
        now[0] += 20.0
        progress.epoch({"epoch": 9})  # 5 steps in 20 s, 5 to go
    assert shown(out).splitlines()[-1] == "baseline 9/10  20 s left"


def test_time_left_counts_the_stages_that_come_later(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("dafp.cli.progress.time.monotonic", lambda: now[0])
    out = console(terminal=False)
    with TerminalProgress(console=out) as progress:
        progress.stage("baseline", epochs=10, steps=5, later=5)
        now[0] += 4.0
        progress.epoch({"epoch": 1})  # 4 s per epoch: 9 more here, 5 later
    assert shown(out).splitlines()[-1] == "baseline 1/10  56 s left"


@pytest.mark.parametrize("val", [True, False])
def test_every_epoch_of_a_run_shows_the_same_accuracy(val, tmp_path, monkeypatch):
    out, config = console(terminal=False), CONFIG
    use_tiny_data(monkeypatch)
    if not val:
        whole = tiny_data()
        parts = {**whole.parts, "val": whole.parts["val"].take(torch.empty(0, dtype=torch.int64))}
        bare = dataclasses.replace(whole, parts=parts)
        monkeypatch.setattr("dafp.runs.pipeline.load_data", lambda *args, **kwargs: bare)
    with TerminalProgress(console=out) as progress:
        run(config, tmp_path, progress)
    lines = [line for line in shown(out).splitlines() if " accuracy " in line]
    assert len(lines) == sum(
        stage.epochs for stage in (config.baseline, config.sparse, config.finetune)
    )
    kind = "val" if val else "train"
    assert [f" {kind} accuracy " in line for line in lines] == [True] * len(lines)
    left = [line.endswith(" left") for line in lines]
    assert left == [*[True] * (len(lines) - 1), False]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("finished") / "run"
    uninterrupted(CONFIG, out)
    return out


@pytest.mark.parametrize(
    "command",
    [
        ("run", "--set", "method=one-shot", "--set", "baseline.epochs=0", "--out", "new"),
        ("finetune", "{run}/model.safetensors", "--data", "folder:nowhere", "--out", "new"),
        ("sensitivity", "{run}", "--set", "val_share=0"),
        ("prune", "{run}", "--data", "folder:nowhere"),
    ],
    ids=lambda command: command[0],
)
def test_an_error_before_the_first_step_leaves_no_empty_line_of_a_bar(
    command, finished, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    line = error_line([part.format(run=finished) for part in command], capsys)
    assert line.removeprefix("\x1b[31m").startswith("error: ")


def test_quiet_prints_nothing(capsys):
    with TerminalProgress(quiet=True) as progress:
        progress.stage("baseline", epochs=1, steps=1)
        progress.epoch({"epoch": 1, "loss": 1.0})
        progress.say("done")
    assert capsys.readouterr() == ("", "")


def test_progress_goes_to_stderr(capsys):
    with TerminalProgress() as progress:
        progress.say("a [b] c")
    assert capsys.readouterr() == ("", "a [b] c\n")


def test_numbers_that_were_not_measured_are_left_out():
    assert numbers_of({"epoch": 1, "loss": None, "val_accuracy": 0.5}) == "val accuracy 50.0 %"


def test_the_summary_table_fits_a_terminal_of_80_columns_and_shows_changes():
    out = console(terminal=False, width=80)
    out.print(summary_table(runs.result()["stages"]))
    rows = [" ".join(line.split()) for line in shown(out).splitlines()]
    assert "baseline 97.22 % 4,224 14.7 M 313 M 8.9 ms" in rows
    assert "fine-tuned 96.94 % −0.3 1,522 −64 % 1.72 M −88 % 121 M −61 % 4.1 ms 2.2×" in rows


def test_the_summary_table_shows_stages_with_missing_numbers():
    out = console(terminal=False)
    out.print(summary_table([{"stage": "[baseline]"}, {"stage": "pruned", "accuracy": 0.5}]))
    assert "[baseline]" in shown(out)
    assert "50.00 %" in shown(out)
