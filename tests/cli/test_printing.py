"""Tables of results: whole in a pipe, and with whole numbers on a terminal of 80 columns."""

import io
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from dafp.cli import app, printing
from dafp.cli.bench import _table
from dafp.cli.printing import printer
from dafp.cli.progress import summary_table
from dafp.cli.sensitivity import sensitivity_table
from dafp.latency import Ratio, Row, Timing
from dafp.recovery.sensitivity import RATIOS, LayerCurve, Sensitivity

LAYER = "features.stage_three.block_12.convolution_of_the_second_branch"


def on_terminal(table) -> str:
    out = io.StringIO()
    Console(file=out, force_terminal=True, width=80, color_system=None).print(table)
    return out.getvalue()


def layers():
    part = LayerCurve(LAYER, "filter", 512, (51,) * len(RATIOS), tuple(0.9 for _ in RATIOS))
    whole = LayerCurve("all", "filter", 1024, (102,) * len(RATIOS), (1.0,) * len(RATIOS))
    return sensitivity_table(Sensitivity(0.95, RATIOS, (part, whole)))


def times():
    timing = Timing((0.12345, 0.12456, 0.13456) * 5, (1.0,) * 15)
    ratio = Ratio(12.34, 11.56, 13.78)
    return _table([Row(f"runs/{LAYER}.safetensors", "eager", 16, 1, timing, ratio, 15.25, 10**9)])


def stages():
    first = {"stage": "baseline", "accuracy": 0.97, "filters": 14224, "params": 14.7e6,
             "macs": 313e6, "latency_s": 0.0189}  # fmt: skip
    last = {"stage": "recalibrated-2", "accuracy": 0.8694, "filters": 11522, "params": 11.72e6,
            "macs": 121e6, "latency_s": 0.0011}  # fmt: skip
    return summary_table([first, last])


@pytest.mark.parametrize(
    ("make", "numbers"),
    [
        (layers, ["1024", *["90.0", "100.0"] * len(RATIOS)]),
        (times, ["123–135", "12.34×", "11.56–13.78", "15.25×", "1000.0"]),
        (stages, ["86.94 % −10.1", "11,522 −19 %", "11.7 M −20 %", "121 M −61 %", "17.2×"]),
    ],
)
def test_numbers_are_not_truncated_on_a_terminal_of_80_columns(make, numbers):
    text = on_terminal(make())
    assert "…" not in text
    assert all(text.count(number) >= numbers.count(number) for number in numbers), text
    assert max(map(len, text.splitlines())) <= 80


@pytest.mark.parametrize("make", [layers, times])
def test_names_get_more_than_a_few_letters_on_a_terminal_of_80_columns(make):
    lines = [line.split() for line in on_terminal(make()).splitlines()]
    assert any(words and len(words[0]) >= 12 and words[0] in LAYER for words in lines), lines


@pytest.mark.parametrize("make", [layers, times, stages])
def test_in_a_pipe_every_name_and_number_is_on_one_line(make, capsys):
    table = make()
    printer().print(table)
    lines = capsys.readouterr().out.splitlines()
    assert sum(bool(line.strip()) for line in lines) == table.row_count + 3  # title, head, rule


def test_lines_in_a_pipe_are_not_wrapped():
    done = CliRunner().invoke(app, ["inspect", "preresnet11", "--residual", "couple"])
    assert done.exit_code == 0, done.output
    table = done.stdout.split("kept")[0].splitlines()
    rows = [line.split("│")[1].strip() for line in table if line.startswith("│")]
    assert all(rows), rows  # where a cell is broken, others of its line are empty


def test_only_the_module_printing_makes_a_console_for_results():
    folder = Path(printing.__file__).parent
    assert [f.name for f in folder.glob("*.py") if "Console()" in f.read_text()] == ["printing.py"]
