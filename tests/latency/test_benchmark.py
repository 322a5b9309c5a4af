"""Timing by turns: what is measured, how sure it is, and when the machine was too busy."""

import json
import math
import shutil
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

import dafp
from dafp import cli
from dafp.errors import BenchError, ExtraError
from dafp.latency import Ratio, Row, Timing, bench, by_turns, chart, ratio
from dafp.latency.peak_memory import peak_of
from dafp.latency.runtimes import runner
from dafp.latency.timing import in_sessions


def steady(seconds: float, count: int = 20) -> Timing:
    return Timing((seconds,) * count, (1.0,) * count)


def net(width: int) -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 4, 3), nn.Flatten())


EXAMPLE = torch.randn(1, 3, 8, 8)


# ---- timing --------------------------------------------------------------------------------------


class Clock:
    """Replaces the module `time`; it advances only when a run asks for it."""

    def __init__(self) -> None:
        self.wall, self.cpu = 0.0, 0.0

    def pass_by(self, seconds: float, *, share: float = 1.0) -> None:
        self.wall += seconds
        self.cpu += share * seconds

    def perf_counter(self) -> float:
        return self.wall

    def thread_time(self) -> float:
        return self.cpu


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr("dafp.latency.timing.time", clock)
    return clock


def test_runs_take_turns_and_each_comes_first_as_often(clock):
    calls: list[str] = []

    def run(name: str) -> None:
        calls.append(name)
        clock.pass_by(0.003)  # longer than a sample must be: one call each

    timings = by_turns({"a": lambda: run("a"), "b": lambda: run("b")}, seconds=0.03)
    rounds = len(timings["a"].samples)
    turns = calls[-2 * rounds :]
    assert turns == (["a", "b", "b", "a"] * rounds)[: 2 * rounds]


def test_what_is_quicker_than_a_sample_is_repeated_and_divided(clock):
    count = [0]

    def run() -> None:
        count[0] += 1
        clock.pass_by(2**-11)  # half a millisecond, summed without rounding

    (timing,) = by_turns({"a": run}, seconds=0.03).values()
    assert timing.median == 2**-11
    assert count[0] == 100 + 5 * len(timing.samples)  # warmed up, then five in each sample of 2 ms


def test_a_ratio_of_steady_times_is_exact():
    assert ratio(steady(0.3), steady(0.1)) == Ratio(*[pytest.approx(3.0)] * 3)


def test_the_interval_of_a_ratio_holds_it_and_widens_with_the_noise():
    generator = torch.Generator().manual_seed(1)

    def noisy(size: float) -> Timing:
        times = 1 + size * torch.rand(40, generator=generator)
        return Timing(tuple(times.tolist()), (1.0,) * 40)

    calm, wild = (ratio(noisy(size), noisy(size)) for size in (0.01, 0.5))
    assert calm.low <= 1.0 <= calm.high
    assert calm.high - calm.low < 0.02 < wild.high - wild.low


def test_a_machine_that_grows_slower_leaves_the_ratio_alone():
    pace = torch.linspace(1, 2, 21).tolist()
    base, other = (Timing(tuple(s * p for p in pace), (1.0,) * 21) for s in (0.3, 0.1))
    late = Timing((1.0, *other.samples[1:]), other.shares)  # one round was disturbed
    assert ratio(base, other) == Ratio(*[pytest.approx(3.0)] * 3)
    assert ratio(base, late) == Ratio(*[pytest.approx(3.0)] * 3)


def test_the_interval_holds_what_sessions_differ_by():
    first, same, other = steady(1.0), steady(0.5), steady(0.48)
    assert ratio(first + first, same + same) == Ratio(*[pytest.approx(2.0)] * 3)
    found = ratio(first + first + first, same + other + same)
    # logs of the three medians: 2, 2 / 0.96 and 2; t = 4.30 for three sessions
    spread = 4.30 * (math.log(1 / 0.96) / 3**0.5) / 3**0.5
    assert (found.value, found.low) == (2.0, pytest.approx(2 / math.exp(spread)))
    assert found.high == pytest.approx(2 * math.exp(spread))
    assert (first + same + other).sessions == (20, 20, 20)


def test_each_session_runs_functions_made_anew_until_the_time_is_up(clock):
    def started(seconds: float) -> list[int]:
        made: list[int] = []

        def start() -> dict:
            made.append(len(made))
            return {"a": lambda: clock.pass_by(seconds)}

        found = in_sessions(start, seconds=1.0)["a"]
        assert len(found.samples) == sum(found.sessions or (len(found.samples),))
        return made

    assert started(0.003) == [0, 1, 2, 3, 4]
    assert started(0.2) == [0]  # nine rounds take longer than a second


def test_steady_times_leave_no_doubt():
    assert steady(0.1).doubt == ""


def test_time_that_others_had_is_a_doubt(clock):
    (timing,) = by_turns({"half": lambda: clock.pass_by(0.003, share=0.5)}, seconds=0.03).values()
    assert timing.doubt == "others used the CPU: 50% of the time was ours"


def test_time_that_others_had_in_a_few_long_samples_is_a_doubt():
    timing = Timing((0.1,) * 15 + (3.0,) * 5, (1.0,) * 15 + (0.03,) * 5)
    assert timing.doubt == "others used the CPU: 12% of the time was ours"  # 1.95 of 16.5 s
    assert Timing((0.1,) * 18 + (0.5,) * 2, (1.0,) * 18 + (0.2,) * 2).doubt == ""  # 2 of 2.8 s


def test_a_busy_machine_gets_as_many_sessions(clock):
    turn = iter(range(10**6))

    def run() -> None:
        clock.pass_by(0.5 if next(turn) % 4 == 0 else 0.003, share=0.5)  # others run at times

    assert len(in_sessions(lambda: {"a": run}, seconds=1.0)["a"].sessions) == 5


def test_drift_is_a_doubt():
    timing = Timing((0.1,) * 10 + (0.12,) * 10, (1.0,) * 20)
    assert timing.doubt == "the time drifted from 100 to 120 ms"


def test_a_wide_spread_is_a_doubt():
    timing = Timing((0.1, 0.2) * 10, (1.0,) * 20)
    assert timing.doubt == "half of the runs lie between 100 and 200 ms"


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak is measured on Linux"
)
def test_peak_memory_is_what_the_action_held_at_most():
    def action() -> None:
        torch.ones(16_000_000)  # 64 MB, gone before it ends

    peak = peak_of(action)
    assert peak is not None
    assert 60e6 < peak < 80e6


# ---- models --------------------------------------------------------------------------------------


def test_every_model_is_measured_in_every_setting_and_compared_with_the_first():
    rows = list(bench({"wide": net(16), "slim": net(4)}, EXAMPLE, batches=(1, 3), seconds=0.02))
    assert [(r.model, r.batch) for r in rows] == [
        ("wide", 1),
        ("slim", 1),
        ("wide", 3),
        ("slim", 3),
    ]
    assert rows[0].speedup == Ratio(1.0, 1.0, 1.0)
    # 3·9·36 and 4·9·16 multiply-adds per inner channel: cost is proportional to the width
    assert [r.ideal for r in rows[:2]] == [1.0, pytest.approx(4.0)]
    assert rows[3].throughput == pytest.approx(3 / rows[3].timing.median)


def test_more_threads_are_used_inside_and_given_back():
    before = torch.get_num_threads()
    rows = list(bench({"net": net(4)}, EXAMPLE, threads=(2,), seconds=0.02))
    assert rows[0].threads == 2
    assert torch.get_num_threads() == before


def test_an_onnx_file_is_measured_with_the_cost_it_states(tmp_path):
    pytest.importorskip("onnxruntime")
    from dafp.export import to_onnx  # noqa: PLC0415

    path = to_onnx(net(4), EXAMPLE, tmp_path / "slim.onnx").path
    rows = list(bench({"wide": net(16), "slim": path}, EXAMPLE, runtimes=["onnx"], seconds=0.02))
    assert rows[1].ideal == pytest.approx(4.0)
    assert rows[1].timing.median > 0


def users_file(path: Path, *shapes: tuple | None, kernel: int = 3) -> Path:
    """An ONNX file as others write it: a convolution of its first input, of this shape."""
    onnx = pytest.importorskip("onnx")
    helper, floats = onnx.helper, onnx.TensorProto.FLOAT
    names = [f"x{number}" for number in range(len(shapes))]
    weight = torch.ones(4, 3, kernel, kernel).numpy()
    if shapes:
        nodes = [helper.make_node("Conv", ["x0", "w"], ["y"])]
    else:
        nodes = [helper.make_node("Identity", ["w"], ["y"])]
    graph = helper.make_graph(
        nodes, "net",
        [helper.make_tensor_value_info(n, floats, s) for n, s in zip(names, shapes, strict=True)],
        [helper.make_tensor_value_info("y", floats, None)],
        [onnx.numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


@pytest.mark.parametrize(
    ("shapes", "options", "words"),
    [
        ([(4, 3, 8, 8)], [], "takes batches of 4 only, not of 1; give that batch size (--batch 4)"),
        ([("n", 3, "h", "w")], [], "how large its input is ([free, 3, free, free]); give --input"),
        ([None], [], "does not say how large its input is ([]); give --input"),
        (
            [("n", 3, 8, 8)],
            ["--input", "1,3,9,9"],
            "takes inputs of [free, 3, 8, 8], not of [1, 3,",
        ),
        ([("n", 3, 8, 8)], ["--input", "1,3"], "takes inputs of [free, 3, 8, 8], not of [1, 3]"),
        ([("n", 3, "h", "w")], ["--input", "1,3,2,2"], "does not run on inputs of [1, 3, 2, 2]: "),
        ([], [], "takes 0 inputs; only files with one input"),
        ([("n", 3, 8, 8), (2,)], [], "takes 2 inputs: tensor(float), tensor(float); only"),
    ],
)
def test_an_onnx_file_that_cannot_be_timed_is_refused_with_the_reason(
    tmp_path, shapes, options, words
):
    path = users_file(tmp_path / "a.onnx", *shapes)
    done = CliRunner().invoke(cli.app, ["bench", str(path), "--seconds", "0.02", *options])
    assert isinstance(done.exception, BenchError), done.output
    assert words in str(done.exception)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((4, 3, 8, 8), ["--batch", "4"]),
        (("n", 3, "h", "w"), ["--input", "1,3,9,7"]),
        (None, ["--input", "1,3,9,7"]),
    ],
)
def test_an_onnx_file_of_others_is_timed_as_asked(tmp_path, shape, options):
    path = users_file(tmp_path / "a.onnx", shape)
    done = CliRunner().invoke(
        cli.app, ["bench", str(path), "--seconds", "0.02", "--json", *options]
    )
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)[0]["median_s"] > 0


def test_an_onnx_file_may_be_named_by_a_string(tmp_path):
    path = users_file(tmp_path / "a.onnx", ("n", 3, 8, 8))
    (row,) = bench({"a": str(path)}, EXAMPLE, runtimes=["onnx"], seconds=0.02)
    assert row.timing.median > 0


@pytest.mark.parametrize("given", ["vgg11", Path("small.safetensors"), None])
def test_what_is_no_model_is_refused_with_how_to_get_one(given):
    with pytest.raises(BenchError, match=r"dafp\.models\.build makes one by name"):
        list(bench({"a": given}, EXAMPLE))


def test_an_onnx_file_is_refused_by_other_runtimes(tmp_path):
    with pytest.raises(BenchError, match="runs in 'onnx' only"):
        list(bench({"a": tmp_path / "a.onnx"}, EXAMPLE, runtimes=["eager"]))


def test_an_unknown_runtime_is_refused_with_those_there_are():
    with pytest.raises(BenchError, match="eager, compile, onnx"):
        list(bench({"a": net(4)}, EXAMPLE, runtimes=["tensorrt"]))


def test_compiling_without_a_compiler_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(ExtraError, match="apt install"):
        runner(net(4), "compile", EXAMPLE, batch=1)


# ---- what is shown -------------------------------------------------------------------------------


def rows() -> list[Row]:
    busy = Timing((0.1, 0.2) * 10, (1.0,) * 20)
    return [
        Row("a <b>", "eager", 1, 1, steady(0.2), Ratio(1, 1, 1), 1.0, 10**6),
        Row("small", "eager", 1, 1, busy, Ratio(2, 1.9, 2.1), 3.0, None),
    ]


def test_the_chart_has_a_bar_per_row_in_proportion_and_grey_where_in_doubt():
    tree = ET.fromstring(chart(rows()))
    bars = [r for r in tree.iter("{http://www.w3.org/2000/svg}rect") if r.get("x")]
    widths = [float(bar.get("width", 0)) for bar in bars]
    assert widths[0] / widths[1] == pytest.approx(0.2 / 0.15, rel=1e-3)
    assert [bar.get("fill") for bar in bars][1] == "#b8b8b8"


def test_the_command_prints_json_and_draws(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = build_small(tmp_path)
    result = CliRunner().invoke(
        cli.app,
        ["bench", "preresnet11", str(small), "--input", "1,3,8,8", "--seconds", "0.02", "--json",
         "--plot", "bench.svg"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    printed = json.loads(result.stdout)
    assert [row["model"] for row in printed] == ["preresnet11", str(small)]
    assert printed[1]["speedup_95"][0] <= printed[1]["speedup"] <= printed[1]["speedup_95"][1]
    assert printed[1]["ideal"] > 1.5
    assert (tmp_path / "bench.svg").read_text().startswith("<svg")


def build_small(folder: Path) -> Path:
    model = dafp.models.build("preresnet11")
    dafp.save(dafp.slim(model, torch.randn(1, 3, 8, 8)), folder / "small.safetensors")
    return folder / "small.safetensors"


def test_classes_and_width_are_for_the_networks_by_name_beside_a_file(tmp_path):
    args = ["preresnet11", str(build_small(tmp_path)), "--width", "0.5", "--classes", "7"]
    done = CliRunner().invoke(
        cli.app, ["bench", *args, "--input", "1,3,8,8", "--seconds", "0.02", "--json"]
    )
    assert done.exit_code == 0, done.output


def test_the_table_reports_when_the_machine_was_too_busy(capsys):
    from dafp.cli.bench import _print  # noqa: PLC0415

    _print(rows())
    out = " ".join(capsys.readouterr().out.split())
    assert "too busy to measure: small: half of the runs lie between 100 and 200 ms" in out
    assert "too busy to measure: a" not in out


def test_reprs_are_short_and_notebooks_show_a_row_as_a_table():
    row = rows()[0]
    assert repr(row.timing) == "Timing(200 ms, quartiles 200 to 200 ms, 20 samples)"
    assert len(repr(row)) < 250
    table = ET.fromstring(row._repr_html_())
    assert [cell.text for cell in table[0]][:5] == ["model", "runtime", "batch", "threads", "ms"]
    assert [cell.text for cell in table[1]][:5] == ["a <b>", "eager", "1", "1", "200"]
