"""The page of a training run in a browser: drawn, quiet, and good on every screen and on paper."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dafp.recovery.sensitivity import LayerCurve, Sensitivity
from dafp.report import write_report, write_sensitivity
from support import runs
from support.slow import slow_except

REQUIRED = os.environ.get("DAFP_REQUIRE_BROWSER") == "1"
BROWSER = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run",
    "--disable-component-update", "--disable-default-apps", "--disable-sync",
)  # fmt: skip

if not REQUIRED:
    pytest.importorskip("playwright", reason="playwright is not installed")
    if BROWSER is None:
        pytest.skip("neither chromium nor google-chrome is installed", allow_module_level=True)

DRAWN = (
    "() => [...document.querySelectorAll('.plot svg')].map(s => s.querySelectorAll('path').length)"
)
WIDE = "() => document.documentElement.scrollWidth - window.innerWidth"
EACH = "2 s per page in the browser"

opens_a_page = pytest.mark.slow(reason=EACH)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright  # noqa: PLC0415

    assert BROWSER is not None, "DAFP_REQUIRE_BROWSER=1, but there is no chromium or google-chrome"
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=BROWSER, args=list(QUIET))
        yield running
        running.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(runs.write_run(tmp_path_factory.mktemp("run")))


@pytest.fixture(scope="module")
def busy_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of a run on a machine that was too busy to measure."""
    run = runs.write_run(tmp_path_factory.mktemp("busy"))
    result = json.loads((run / "result.json").read_text())
    for stage in result["stages"]:
        one = {"threads": 1, "latency_s": 1e-3, "speedup": 1.0, "low": 0.9, "high": 1.1}
        stage["speeds"] = [{**one, "doubt": "half of the runs lie between 0.272 and 1.37 ms"}]
    (run / "result.json").write_text(json.dumps(result))
    return write_report(run)


@pytest.fixture
def visit(browser: Any) -> Iterator[Any]:
    """Open a file; what the page complained about and asked for is in .said and .asked."""
    contexts = []

    def opened(path: Path, width: int = 1280, **options: Any) -> Any:
        context = browser.new_context(
            viewport={"width": width, "height": 900}, reduced_motion="reduce", **options
        )
        contexts.append(context)
        page = context.new_page()
        page.said, page.asked = [], []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.set_default_timeout(60_000)
        page.goto(path.as_uri())
        return page

    yield opened
    for context in contexts:
        context.close()


def test_every_chart_is_drawn_without_a_complaint_and_without_the_network(visit, report):
    page = visit(report)
    drawn = page.evaluate(DRAWN)
    assert len(drawn) == 8
    assert min(drawn) >= 6
    assert page.said == []
    assert page.asked == [report.as_uri()]


def test_hover_shows_the_numbers_of_that_epoch(visit, report):
    page = visit(report)
    plot = page.locator(".plot[aria-label^='Accuracy over']")
    plot.hover(position={"x": 300, "y": 150})
    tip = plot.locator(".tip")
    tip.wait_for(state="visible")
    assert "sparse training, epoch " in tip.inner_text()
    assert "validation" in tip.inner_text()


@opens_a_page
@pytest.mark.parametrize("width", [390, 800, 1280])
def test_no_headline_is_wider_than_its_card(visit, busy_report, width):
    page = visit(busy_report, width)
    over = "() => [...document.querySelectorAll('.tile')].map(e => e.scrollWidth - e.clientWidth)"
    assert page.locator(".tile .value.words").inner_text() == "too busy to tell"
    assert max(page.evaluate(over)) <= 0


@opens_a_page
def test_hover_over_a_layer_shows_what_it_kept(visit, report):
    page = visit(report)
    plot = page.locator(".plot[aria-label^='Channels per layer']")
    plot.hover(position={"x": 80, "y": 150})
    tip = plot.locator(".tip")
    tip.wait_for(state="visible")
    words = " ".join(tip.inner_text().split())
    assert words == "features.0 before 64 after 41 kept 64.06 %"


@opens_a_page
def test_hover_over_a_point_names_the_network_and_its_cost(visit, report):
    page = visit(report)
    plot = page.locator(".plot[aria-label^='Accuracy against multiply-adds']")
    tip = hover_point(page, plot, "fine-tuned")
    assert "multiply-adds 121 M" in tip.inner_text()
    assert "96.94 %" in tip.inner_text()


@opens_a_page
def test_zoom_shows_fewer_epochs_and_a_double_click_all_of_them(visit, report):
    page = visit(report)
    plot = page.locator(".plot[aria-label^='Sparsity P']")
    whole = axis(plot)
    plot.hover(position={"x": 300, "y": 150})
    page.keyboard.down("Control")
    for _ in range(6):
        page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    page.wait_for_function("([plot, old]) => plot.textContent !== old", arg=[handle(plot), whole])
    other = page.locator(".plot[aria-label^='Penalty']")
    assert "1" not in ticks(plot)  # the first epoch is out of sight
    assert ticks(other)[-4:] == ticks(plot)[-4:]  # its neighbour follows
    plot.dblclick(position={"x": 300, "y": 150})
    page.wait_for_function("([plot, old]) => plot.textContent === old", arg=[handle(plot), whole])


@opens_a_page
def test_scrolling_over_a_chart_scrolls_the_page(visit, report):
    page = visit(report)
    page.locator(".plot").first.hover()
    before = page.evaluate("() => scrollY")
    page.mouse.wheel(0, 300)
    page.wait_for_function("old => scrollY > old", arg=before)


@pytest.mark.parametrize("width", slow_except((390,), (360, 390, 768, 1280), reason=EACH))
def test_no_width_of_screen_makes_the_page_scroll_sideways(visit, report, width):
    page = visit(report, width)
    assert page.evaluate(WIDE) <= 0
    assert min(page.evaluate(DRAWN)) >= 6


def test_a_phone_page_of_an_unfinished_run_does_not_scroll_sideways(visit, tmp_path):
    long = [{**row, "stage": "s" * 60} for row in runs.metrics()[:3]]
    run = runs.write_run(tmp_path, metrics=long, result=None, config="a = '" + "x" * 300 + "'\n")
    page = visit(write_report(run), 360)
    assert page.evaluate(WIDE) <= 0
    assert page.said == []


@opens_a_page
def test_charts_follow_the_colour_scheme_while_the_page_is_open(visit, report):
    page = visit(report, color_scheme="light")
    light = colours(page)
    page.emulate_media(color_scheme="dark")
    page.wait_for_function(
        "() => document.querySelector('.plot svg').outerHTML.includes('#6ea5ff')"
    )
    assert "#2f6bd8" in light
    assert "#2f6bd8" not in colours(page)


@opens_a_page
def test_paper_is_light_whole_and_without_zoom_handles(visit, report):
    page = visit(report, color_scheme="dark")
    page.emulate_media(media="print")
    page.wait_for_function(
        "() => document.querySelector('.plot svg').outerHTML.includes('#2f6bd8')"
    )
    assert min(page.evaluate(DRAWN)) >= 6
    boxes = page.evaluate(
        "() => [...document.querySelectorAll('.plot')].map(p => [p.clientWidth,"
        " p.querySelector('svg').getBoundingClientRect().width])"
    )
    assert {(640, 640)} == {tuple(box) for box in boxes}  # A4 within its margins has 680
    assert page.evaluate("() => getComputedStyle(document.body).color") == "rgb(28, 35, 48)"
    page.emulate_media(media="screen")
    page.wait_for_function(
        "() => document.querySelector('.plot svg').outerHTML.includes('#6ea5ff')"
    )


@opens_a_page
def test_a_printed_page_has_its_charts(visit, report):
    page = visit(report)
    paper = page.pdf(format="A4")
    assert paper.startswith(b"%PDF")
    assert paper.count(b"/Type /Page\n") >= 4 or paper.count(b"/Type /Page") >= 4
    assert min(page.evaluate(DRAWN)) >= 6


def test_without_javascript_the_tables_are_there(visit, report):
    page = visit(report, java_script_enabled=False)
    assert page.get_by_role("row", name="fine-tuned 96.94 %").is_visible()
    assert page.get_by_role("row", name="features.0 filter 64 41").is_visible()


def test_hostile_names_run_no_script_and_show_as_they_are(visit, tmp_path):
    evil = "<img src=x onerror=alert(1)>{b}@blue"
    result = runs.result()
    result["layers"][0]["name"] = result["stages"][3]["stage"] = evil
    page = visit(write_report(runs.write_run(tmp_path, result=result)))
    plot = page.locator(".plot[aria-label^='Channels per layer']")
    plot.hover(position={"x": 80, "y": 150})
    plot.locator(".tip").wait_for(state="visible")
    assert evil in plot.locator(".tip").inner_text()
    plot = page.locator(".plot[aria-label^='Accuracy against multiply-adds']")
    assert evil in hover_point(page, plot, "onerror").inner_text()
    assert page.locator("img").count() == 0
    assert page.said == []


@pytest.mark.parametrize("width", [360, 1280])
def test_a_cell_of_the_heat_map_tells_layer_ratio_and_accuracy(visit, tmp_path, width):
    write_sensitivity(sensitivity(), tmp_path)
    page = visit(tmp_path / "sensitivity.html", width)
    plot = page.locator(".plot[aria-label^='Sensitivity']")
    box = plot.locator("svg text", has_text="37").bounding_box()  # written in its cell
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    plot.locator(".tip").wait_for(state="visible")
    words = " ".join(plot.locator(".tip").inner_text().split())
    assert words == "conv2 90 % removed 37 %"
    assert page.locator("svg path[fill^='rgb(201,69,69)']").count() == 4  # not where none went
    assert page.evaluate(WIDE) <= 0
    assert page.said == []


@pytest.mark.slow(reason="a run of its own, and a browser")
def test_the_page_of_a_run_has_its_heat_map(visit, tmp_path):
    run = runs.write_run(tmp_path)
    write_sensitivity(sensitivity(), run)
    page = visit(write_report(run))
    assert page.locator(".plot[aria-label^='Sensitivity: accuracy'] svg path").count() >= 6
    assert page.said == []


def sensitivity() -> Sensitivity:
    layers = (
        LayerCurve("conv1", "filter", 4, (0, 2, 3), (0.9, 0.8, 0.3)),
        LayerCurve("conv2", "filter", 8, (0, 4, 7), (0.9, 0.88, 0.37)),
    )
    return Sensitivity(0.9, (0.1, 0.5, 0.9), layers, {"model": "vgg16", "data": "digits"})


def hover_point(page: Any, plot: Any, name: str) -> Any:
    """The tooltip of a point that has its name above it (the legend's text comes later)."""
    plot.scroll_into_view_if_needed()
    word = plot.locator("svg text", has_text=name).first.bounding_box()
    page.mouse.move(word["x"] + word["width"] / 2, word["y"] + word["height"] + 7)
    tip = plot.locator(".tip")
    tip.wait_for(state="visible")
    return tip


def handle(plot: Any) -> Any:
    return plot.locator("svg").element_handle()


def axis(plot: Any) -> str:
    text = plot.locator("svg").text_content()
    assert isinstance(text, str)
    return text


def ticks(plot: Any) -> list[str]:
    return [text for text in plot.locator("svg text").all_text_contents() if text.isdigit()]


def colours(page: Any) -> str:
    return "".join(
        page.evaluate("() => [...document.querySelectorAll('.plot')].map(p => p.innerHTML)")
    )
