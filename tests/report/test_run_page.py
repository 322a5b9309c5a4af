"""The page of a training run: what it says, what it survives, and that it loads nothing."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dafp import cli
from dafp.errors import FileError
from dafp.report import (
    Axis,
    Cell,
    Section,
    Series,
    bar,
    line,
    page,
    read_run,
    scatter,
    write_report,
)
from dafp.report import formatting as w
from dafp.report.page import Tile, details, figure, paragraph, safe_json, table, tiles, verbatim
from dafp.training.config import Config, to_toml
from support import runs

EVIL = (
    '" onclick="alert(1)" </script><script>alert(1)</script><img src=x onerror=alert(1)>&"\'\u2028'
)


class Reader(HTMLParser):
    """Tags with their attributes, the text of a reader, and what stands inside scripts."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[tuple[str | None, str]] = []
        self.inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.inside = tag

    def handle_endtag(self, tag: str) -> None:
        self.inside = ""

    def handle_data(self, data: str) -> None:
        if self.inside == "script":
            self.scripts.append((self.tags[-1][1].get("type"), data))
        elif self.inside != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def charts(self) -> list[dict[str, Any]]:
        return [json.loads(data) for kind, data in self.scripts if kind == "application/json"]


def written(path: Path, **files: Any) -> Reader:
    return Reader(write_report(runs.write_run(path, **files)).read_text(encoding="utf-8"))


# ---- what it says --------------------------------------------------------------------------------


def test_the_headline_compares_the_first_network_with_the_last(tmp_path):
    # 0.9694 after 0.9722; 1522 of 4224 filters; 8.9 ms to 4.1 ms
    text = written(tmp_path).text
    assert "Accuracy 96.9 % −0.3 points against baseline" in text
    assert "Filters −64 % 4,224 → 1,522" in text
    assert "Speed 2.2× 8.9 ms → 4.1 ms" in text


def test_the_summary_table_has_a_row_per_stage_with_its_change(tmp_path):
    text = written(tmp_path).text
    assert "baseline 97.22 % 4,224 14,718,912 313 M 8.9 ms 97.50 % epoch 27" in text
    assert "pruned 95.83 % −1.4 1,522 −64 % 1,718,606 −88 % 121 M −61 % 4.1 ms 2.2×" in text


def test_a_network_trained_from_scratch_is_the_result_of_its_run(tmp_path):
    result = runs.result()
    result["stages"][-1]["stage"] = "scratch-E"
    assert "Accuracy 96.9 % −0.3 points against baseline" in written(tmp_path, result=result).text


def test_a_point_between_two_gaps_is_drawn():
    def shown(*values: float | None) -> bool:
        points = list(enumerate(values))
        return line("a", [Series("test", points)], x=Axis(""), y=Axis("")).option["series"][0][
            "showSymbol"
        ]

    assert shown(0.5, 0.6, None, None, 0.7)
    assert shown(0.5, None, 0.6, 0.7)
    assert not shown(None, 0.5, 0.6, None, 0.7, 0.8)


def test_every_layer_is_in_the_table_with_what_it_kept(tmp_path):
    text = written(tmp_path).text
    assert "features.0 filter 64 41 64 % 1,189 −36 % 1.13 M −36 %" in text
    assert len(re.findall(r"features\.\d+ filter", text)) == 13


def test_the_curves_hold_every_epoch_and_break_between_stages(tmp_path):
    accuracy = chart_of(written(tmp_path), "test")
    ys = [y for _, y, _ in series_of(accuracy, "test")["data"]]
    assert len(ys) == 102  # 30 + 40 + 30 epochs and two gaps
    assert [i for i, y in enumerate(ys) if y is None] == [30, 71]
    assert [band["end"] for band in accuracy["bands"]] == [30, 70, 100]


def test_sparsity_is_drawn_against_its_aim_and_its_target(tmp_path):
    chart = chart_of(written(tmp_path), "P")
    last = {s["name"]: s["data"][-1][:2] for s in chart["option"]["series"]}
    assert last["aim"] == last["target"] == [40, 0.64]
    assert last["P"][1] == pytest.approx(0.64)


def test_the_widths_are_drawn_before_and_after(tmp_path):
    chart = chart_of(written(tmp_path), "before")
    assert series_of(chart, "before")["data"] == [before for before, _ in runs.WIDTHS]
    assert series_of(chart, "after")["data"] == [after for _, after in runs.WIDTHS]


def test_the_configuration_is_shown_verbatim_and_as_a_table(tmp_path):
    page = written(tmp_path)
    assert any(runs.CONFIG in words for words in page.words)
    assert "finetune.milestones [15, 23]" in page.text
    assert "torch 2.13.0" in page.text
    assert "threads 2" in page.text


def test_a_missed_target_is_said(tmp_path):
    result = runs.result()
    result["sparsity"] |= {"reached": 0.51, "forced": True}
    text = written(tmp_path, result=result).text
    assert "reached P = 51.0 %, −13.0 points from its target of 64.0 %" in text
    assert "Sparse training ended short of the target: pruning removed channels in use." in text


def test_the_command_writes_the_page_and_prints_where(tmp_path):
    runs.write_run(tmp_path)
    done = CliRunner().invoke(cli.app, ["report", str(tmp_path)], catch_exceptions=False)
    assert done.stdout.strip() == str(tmp_path / "report.html")
    assert (tmp_path / "report.html").is_file()


def test_nothing_is_left_beside_the_page(tmp_path):
    written(tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "config.toml", "metrics.jsonl", "plan.json", "report.html", "result.json",
    ]  # fmt: skip


def test_equal_runs_give_equal_pages(tmp_path):
    first = write_report(runs.write_run(tmp_path / "a" / "run")).read_bytes()
    assert first == write_report(runs.write_run(tmp_path / "b" / "run")).read_bytes()


# ---- self-contained and safe ---------------------------------------------------------------------


def test_the_page_loads_nothing(tmp_path):
    page = written(tmp_path)
    loading = {"src", "href", "srcset", "data", "action", "poster", "background"}
    assert [(tag, a) for tag, a in page.tags if loading & set(a)] == []
    assert {"link", "iframe", "img", "object"} & {tag for tag, _ in page.tags} == set()
    css = re.search(r"<style>(.*?)</style>", (tmp_path / "report.html").read_text(), re.S)
    assert css is not None
    assert re.findall(r"url\(|@import|https?:", css[1]) == []


def test_the_pages_own_policy_forbids_all_but_its_two_scripts(tmp_path):
    policy = next(a["content"] for t, a in written(tmp_path).tags if "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none';")
    assert len(re.findall(r"'sha256-[\w+/=]{44}'", policy)) == 2


def test_the_library_cannot_end_its_script_element(tmp_path):
    page = written(tmp_path)
    code = [data for kind, data in page.scripts if kind is None]
    assert len(code) == 2
    assert "Licensed to the Apache Software Foundation" in code[0][:200]
    assert all("<!--" not in data for data in code)


def test_nothing_that_a_run_says_becomes_markup(tmp_path):
    result = runs.result()
    result["model"] = result["method"] = result["stages"][1]["stage"] = EVIL
    result["layers"][0]["name"] = result["layers"][0]["kind"] = EVIL
    result["versions"] = {EVIL: EVIL}
    rows = [{**row, "stage": EVIL} for row in runs.metrics()[:5]]
    config = f"note = {json.dumps(EVIL)}\n"
    plain = written(
        tmp_path / "a", metrics=runs.metrics()[:5], config="note = 'a'\n",
        result={**runs.result(), "versions": {"a": "b"}},
    )  # fmt: skip
    page = written(tmp_path / "b", result=result, metrics=rows, config=config)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]
    assert "alert(1)" in page.text  # shown, as text


def test_nothing_that_an_unfinished_run_says_becomes_markup(tmp_path):
    rows = [{**row, "stage": EVIL} for row in runs.metrics()[:5]]
    plain = written(tmp_path / "a", metrics=runs.metrics()[:5], result=None)
    page = written(tmp_path / "b", metrics=rows, result=None)
    assert [tag for tag, _ in page.tags] == [tag for tag, _ in plain.tags]


def test_every_part_of_a_page_escapes_what_it_is_given():
    chart = line(EVIL, [Series(EVIL, [(1, 2)])], x=Axis(EVIL), y=Axis(EVIL))
    cells: list[list[str | Cell]] = [[EVIL, Cell(EVIL, EVIL, 0.5)]]
    for block in (
        figure(chart, EVIL, EVIL), table(EVIL, [EVIL, EVIL], cells), paragraph(EVIL, EVIL),
        tiles([Tile(EVIL, EVIL, EVIL, EVIL)]), details(EVIL), verbatim(EVIL),
    ):  # fmt: skip
        found = Reader(block)
        assert "img" not in [tag for tag, _ in found.tags], block
        assert "onclick" not in {name for _, attributes in found.tags for name in attributes}
    whole = Reader(page(EVIL, [Section(EVIL, [])], EVIL, EVIL))
    assert "img" not in [tag for tag, _ in whole.tags]


def test_json_in_a_script_says_the_same_and_cannot_end_it():
    text = safe_json({"name": EVIL})
    assert json.loads(text) == {"name": EVIL}
    assert set("<>&\u2028") & set(text) == set()


def test_charts_have_words_for_those_who_cannot_see_them(tmp_path):
    plots = [a for _, a in written(tmp_path).tags if a.get("class") == "plot"]
    assert len(plots) == 8
    assert all(plot["role"] == "img" and plot["aria-label"] for plot in plots)
    assert plots[0]["aria-label"].startswith(
        "Accuracy against multiply-adds: baseline 97.2 % at 313"
    )


def test_points_that_lie_on_one_another_have_one_label_between_them(tmp_path):
    result = runs.result()
    for stage, accuracy in zip(result["stages"], (0.9722, 0.9720, 0.9583, 0.9694), strict=True):
        stage["accuracy"] = accuracy
    option = written(tmp_path, result=result).charts()[0]["option"]
    words = [one["data"][0]["name"] for one in option["series"] if one["name"]]
    assert words == ["baseline, sparse", "", "pruned", "fine-tuned"]


def test_the_axis_of_equal_accuracies_ends_at_100_percent(tmp_path):
    result = runs.result()
    for stage in result["stages"]:
        stage["accuracy"] = 0.9972
    axis = written(tmp_path, result=result).charts()[0]["option"]["yAxis"]
    assert (axis["min"], axis["max"]) == (pytest.approx(0.9872), 1.0)


def test_without_javascript_the_page_says_so_and_shows_no_empty_frames(tmp_path):
    text = write_report(runs.write_run(tmp_path)).read_text(encoding="utf-8")
    [note] = re.findall(r"<noscript>(.*?)</noscript>", text)
    assert "all numbers are in the tables below" in note
    assert "figure { display: none; }" in note


# ---- what it survives ----------------------------------------------------------------------------


def test_an_unfinished_run_says_so_and_shows_what_there_is(tmp_path):
    page = written(tmp_path, result=None, plan=None, metrics=runs.metrics()[:48])
    assert "epoch 18 of 40 of stage 'sparse' is the last one written" in page.text
    assert "vgg16 on digits" in page.text
    assert len(page.charts()) == 4  # accuracy, loss, P, λ


def test_an_unfinished_run_that_is_pruned_shows_the_widths_of_its_plan(tmp_path):
    chart = chart_of(written(tmp_path, result=None), "before")
    assert series_of(chart, "after")["data"] == [after for _, after in runs.WIDTHS]


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    page = written(tmp_path, result=None, plan=None, metrics=None)
    assert "no epoch is done yet" in page.text
    assert page.charts() == []


def test_rows_with_almost_no_fields_are_drawn(tmp_path):
    rows = [{"stage": "baseline", "epoch": n, "loss": None, "test_accuracy": 0.5} for n in (1, 2)]
    page = written(tmp_path, metrics=rows, result={}, plan=None, config=None)
    assert [c["option"]["series"][0]["name"] for c in page.charts()] == ["test"]
    assert "baseline 1 – – – – 50.0 % – – –" in page.text


def test_a_stage_that_is_missing_is_no_error(tmp_path):
    result = runs.result()
    result["stages"] = result["stages"][1:]  # sparse training from scratch: no baseline
    rows = [row for row in runs.metrics() if row["stage"] != "baseline"]
    text = written(tmp_path, result=result, metrics=rows).text
    assert "+0.8 points against sparse" in text


def test_a_last_line_that_was_cut_off_is_left_out_and_said(tmp_path):
    text = "".join(json.dumps(row) + "\n" for row in runs.metrics()[:3]) + '{"stage": "base'
    runs.write_run(tmp_path, metrics=text)
    run = read_run(tmp_path)
    assert len(run.epochs) == 3
    assert run.notes == ("The last line of metrics.jsonl is incomplete and was left out.",)


def test_a_loss_that_is_not_a_number_is_a_gap_that_is_said(tmp_path):
    text = '{"stage": "baseline", "epoch": 1, "loss": NaN, "test_accuracy": 1e999}\n'
    page = written(tmp_path, metrics=text, result=None, plan=None)
    assert "metrics.jsonl line 1: loss is not a finite number." in page.text
    assert "metrics.jsonl line 1: test_accuracy is not a finite number." in page.text
    assert page.charts() == []


def test_an_epoch_that_was_repeated_counts_once_by_its_last_line(tmp_path):
    rows = [{"stage": "a", "epoch": 1, "loss": loss} for loss in (3.0, 2.0)]
    run = read_run(runs.write_run(tmp_path, metrics=rows))
    assert [row["loss"] for row in run.epochs] == [2.0]


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"metrics": 'x\n{"stage": "a", "epoch": 1}\n'}, "metrics.jsonl line 1 is damaged"),
        ({"metrics": "x\n"}, "metrics.jsonl line 1 is damaged"),
        ({"metrics": "[1]\n"}, "line 1 is damaged: expected an object"),
        ({"metrics": '{"epoch": 1}\n'}, "'stage' is missing"),
        ({"metrics": '{"stage": "a", "epoch": 1.5}\n'}, "epoch is 1.5; expected int"),
        ({"metrics": '{"stage": "a", "epoch": NaN}\n'}, "'epoch' is not a finite number"),
        ({"metrics": '{"stage": "a", "epoch": 1, "loss": "1"}\n'}, "loss is '1'; expected float"),
        ({"metrics": '{"stage": "a", "epoch": 1, "loss": true}\n'}, "loss is True; expected float"),
        ({"config": "a = "}, "config.toml is damaged"),
        ({"result": "{"}, "result.json is damaged"),
        ({"result": "[]"}, "expected an object, found list"),
        ({"result": {"stages": {"a": 1}}}, "stages is {'a': 1}; expected a list"),
        (
            {"result": {"layers": [{"kind": "filter"}]}},
            r"layers\[0\] is damaged: 'name' is missing",
        ),
        ({"result": {"versions": "2.0"}}, "versions is '2.0'; expected an object"),
        ({"plan": "{}"}, "plan.json: this is not a pruning plan"),
    ],
)
def test_a_damaged_file_is_named_with_its_place(tmp_path, files, message):
    with pytest.raises(FileError, match=message):
        write_report(runs.write_run(tmp_path, **files))
    assert not (tmp_path / "report.html").exists()


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (runs.write_run(tmp_path) / "metrics.jsonl").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(FileError, match=r"metrics.jsonl is damaged: it is not UTF-8"):
        read_run(tmp_path)


def test_a_directory_without_a_run_is_refused(tmp_path):
    with pytest.raises(FileError, match=r"holds no training run; expected one of config\.toml"):
        read_run(tmp_path)
    with pytest.raises(FileError, match="is not a directory"):
        read_run(tmp_path / "nowhere")


# ---- parts for other pages -----------------------------------------------------------------------


def test_a_page_of_another_kind_is_built_of_the_same_parts():
    series = [Series("DAFP", [(0.2, 0.9), (0.4, 0.8)], errors=[0.01, None])]
    share = Axis("share removed", "percent")
    text = page("Methods", [
        Section("Curves", [figure(line("a", series, x=share, y=share), "By ratio")]),
        Section("Numbers", [table("T", ["", "20 %"], [["DAFP", Cell("90.0", "± 1.0")]])]),
    ])  # fmt: skip
    found = Reader(text)
    assert "DAFP 90.0 ± 1.0" in found.text
    drawn = found.charts()[0]["option"]["series"]
    assert drawn[0]["data"] == [[0.2, 0.9, 0.01], [0.4, 0.8, None]]
    ends = drawn[0]["markLine"]["data"]
    assert [[end["coord"] for end in pair] for pair in ends] == [
        [[0.2, pytest.approx(0.89)], [0.2, pytest.approx(0.91)]]
    ]


def test_points_carry_their_words_and_columns_their_categories():
    dots = scatter("a", [Series("x", [(1, 2)], labels=["here"])], x=Axis("x"), y=Axis("y"))
    assert dots.option["series"][0]["data"][0]["name"] == "here"
    columns = bar("b", ["p", "q"], [Series("n", [(None, 3), (None, 4)])], y=Axis("y"))
    assert columns.option["xAxis"]["data"] == ["p", "q"]
    assert columns.option["series"][0]["data"] == [3, 4]
    assert columns.option["yAxis"]["scale"] is False  # from 0


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (w.percent(0.9722), "97.2 %"), (w.percent(-0.00001), "0.0 %"), (w.percent(None), "–"),
        (w.points(0.97, 0.975), "−0.5"), (w.points(0.98, 0.975), "+0.5"),
        (w.points(0.97, 0.97), "±0.0"), (w.change(40, 100), "−60 %"),
        (w.change(101, 100), "+1.0 %"),
        (w.change(1, 0), "–"), (w.speedup(1.0, 2.1), "2.1×"), (w.speedup(2.0, 1.0), "0.50×"),
        (w.short(921_000), "921 k"), (w.short(19_800_000), "19.8 M"), (w.short(4224), "4,224"),
        (w.short(1_000_000), "1 M"), (w.short(999_900), "1 M"), (w.short(10_000), "10 k"),
        (w.count(921_000), "921,000"), (w.seconds(0.0021), "2.1 ms"), (w.seconds(75), "1 min 15 s"),
        (w.seconds(7260), "2 h 1 min"), (w.seconds(4e-5), "40 µs"), (w.seconds(59.7), "59.7 s"),
        (w.number(0.00012), "0.00012"), (w.number(-2.0), "−2"),
    ],
)  # fmt: skip
def test_numbers_are_worded(said, expected):
    assert said == expected


def chart_of(page: Reader, name: str) -> dict[str, Any]:
    """The first chart that has a series of this name."""
    return next(c for c in page.charts() if any(s["name"] == name for s in c["option"]["series"]))


def series_of(chart: dict[str, Any], name: str) -> dict[str, Any]:
    return next(s for s in chart["option"]["series"] if s["name"] == name)


def test_a_run_that_has_only_begun_is_named_by_the_configuration_that_a_run_writes(tmp_path):
    text = to_toml(Config(model="resnet20", data="cifar10", unit="macs"))
    page = written(tmp_path, config=text, metrics=runs.metrics()[:35], result=None, plan=None)
    assert "resnet20 on cifar10" in page.text
    assert "of the multiply-adds, aim" in page.text


def test_sparsity_is_shown_with_its_unit(tmp_path):
    result = runs.result()
    result["sparsity"]["unit"] = "params"
    assert "target of 64.0 % of the parameters" in written(tmp_path, result=result).text


def test_the_repr_of_a_run_is_short(tmp_path):
    run = read_run(runs.write_run(tmp_path / "run"))
    assert repr(run) == f"Run('{tmp_path / 'run'}', 100 epochs, finished)"
