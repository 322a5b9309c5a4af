"""The speed in the closing table and on the report's card: a number with its interval, or none."""

import pytest
import torch

from dafp.cli.progress import summary_table
from dafp.models import build
from dafp.report.speed import latency_text, speed_line, speed_line_of, speed_note, speed_tile
from dafp.runs import run_log
from dafp.training.run_records import Stage, record_of


def stage(seconds: float, speedup: float, doubt: str = "", name: str = "finetuned") -> Stage:
    one = {"threads": 1, "latency_s": seconds, "speedup": speedup, "low": speedup - 0.1,
           "high": speedup + 0.1, "doubt": doubt}  # fmt: skip
    two = {**one, "threads": 2, "speedup": 1.2}
    row = {"stage": name, "accuracy": 0.9, "filters": 3, "params": 10, "macs": 100,
           "latency_s": seconds, "speeds": [one, two]}  # fmt: skip
    return record_of(Stage, row, "result.json", [])


FIRST = stage(2e-3, 1.0, name="baseline")


def test_the_card_has_the_interval_and_the_speed_on_all_threads():
    tile = speed_tile(FIRST, stage(1e-3, 2.0))
    assert (tile.value, tile.mood) == ("2.00×", "good")
    assert "95 %: 1.90 to 2.10×; 2 threads: 1.20×" in tile.note
    assert speed_tile(FIRST, stage(2e-3, 1.05)).mood == ""  # 0.95 to 1.15: it cannot be told
    assert speed_tile(FIRST, stage(2.5e-3, 0.8)).mood == "bad"


def test_a_busy_machine_gets_no_number_on_card_and_table():
    busy = stage(1e-3, 2.0, doubt="others used the CPU: 38% of the time was ours")
    tile = speed_tile(FIRST, busy)
    assert tile.value == "too busy to tell"
    assert "others used the CPU" in tile.note
    assert (latency_text(busy), speed_note(busy, FIRST)) == ("too busy to tell", "")
    cells = list(summary_table([FIRST, busy]).columns[-1].cells)
    assert cells[1] == "too busy to tell"


@pytest.mark.parametrize(
    ("speedup", "doubt", "words"),
    [
        (2.0, "", ""),  # faster: nothing to say
        (1.05, "", "40% fewer multiply-adds are not faster here: 1.05× (0.95 to 1.15)"),
        (0.8, "", "40% fewer multiply-adds are not faster here: 0.80× (0.70 to 0.90)"),
        (2.0, "the time drifted", "too busy to tell if 40% fewer multiply-adds are faster (the ti"),
    ],
)
def test_one_line_says_where_fewer_multiply_adds_are_not_faster(speedup, doubt, words):
    first, last = FIRST, stage(1e-3, speedup, doubt)
    last = {**last, "macs": 60}
    line = speed_line_of([first, last])
    assert words in line
    assert bool(line) == bool(words)
    assert "\n" not in line
    assert speed_line_of([first, {**last, "speeds": None}]) == ""  # a run of before
    assert speed_line(last["speeds"][0], 60, 60) == ""  # nothing was removed


def test_runs_of_before_have_latencies_only():
    old = {**stage(1e-3, 2.0), "speeds": None}
    assert speed_tile(FIRST, old).value == "2.0×"
    assert speed_note(old, FIRST) == "2.0×"


@pytest.mark.parametrize("threads", [1, 2])
def test_speeds_are_measured_against_the_first_network(threads, monkeypatch):
    monkeypatch.setattr(run_log, "TIMED", 0.05)
    before = torch.get_num_threads()
    whole, small = (build("vgg11", width=width).eval() for width in (0.5, 0.125))
    first, last = run_log.speeds([whole, small], torch.zeros(1, 3, 32, 32), threads)
    assert torch.get_num_threads() == before
    assert (first["speedup"], first["threads"]) == (1.0, threads)
    assert last["low"] <= last["speedup"] <= last["high"]
