"""The documentation: the site builds strictly, links work, commands and Python blocks run.

Every command of the READMEs and docs/ is run, as written or as INSTEAD changes it; every Python
block is executed with the names of `assumed`.
"""

import contextlib
import inspect
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import torch
import typer
from PIL import Image
from torch import nn
from typer.testing import CliRunner

import dafp
from dafp import cli
from dafp.export import to_onnx
from dafp.models import build
from dafp.network.model_info import ModelInfo, with_info
from support.pages import (
    READMES,
    ROOT,
    Page,
    blocks,
    commands,
    inline_commands,
    links,
    python_blocks,
)
from support.pages import pages as all_pages
from support.pictures import draw_shapes
from support.slow import slow_except

PAGES = {p.relative_to(ROOT).as_posix(): p.read_text(encoding="utf-8") for p in all_pages()}
TINY = (
    "--set model=vgg11 --set width=0.07 --set data=digits --set images=64 --set batch_size=16 "
    "--set threads=1 --set precision=fp32 "
    "--set baseline.epochs=1 --set sparse.epochs=1 --set finetune.epochs=1"
)

# What is run instead of a command, and why: a pattern, what takes its place, the reason. All that
# match are applied, from top to bottom. A command that none of them matches is run as it stands.
INSTEAD = (
    (r"^make(?= |$)", "make -n", "minutes, or this very test: make says what it would do"),
    (r"^\.venv-zoo/bin/", "", "an environment of its own (make zoo)"),
    (r"^torchrun .* -m (?=dafp )", "", "no GPUs, one node: what the launcher would start"),
    (r"^(.*\bdafp (?:run|compare)\b.*)", rf"\1 {TINY}", "minutes; CIFAR-10 is not here"),
    (r"^(dafp run.* --steps) 5(.*)", r"\1 2\2 --set finetune.epochs=2", "an epoch each: see TINY"),
    (r"^(dafp export .* --int8\b)", r"\1 --floor 0", "a run of an epoch has nothing to keep"),
    (r"^(dafp finetune .*)", rf"\1 {TINY}", "minutes"),
    (r"^(dafp prune .*--data) cifar10", r"\1 digits --images 40", "CIFAR-10 is not here"),
    (r"^(dafp finetune .*) --data cifar10", r"\1", "CIFAR-10 is not here: see TINY"),
    (
        r"^dafp prune timm:resnet18 --weights r18.pth",
        "dafp prune vgg16 --weights vgg16.pth --input 1,3,32,32 --classes 10",
        "timm is an environment of its own (make zoo)",
    ),
    (r"^(dafp compare .*--target [^,]+),\S+(.*)", r"\1\2 --seeds 0", "one job per method"),
    (r"^(dafp compare (?!.*--target).*)", r"\1 --ratios 0.5 --seeds 0", "one job per method"),
    (
        r"^(dafp compare .*) --results \S+",
        r"\1",
        "the published results are not for tests to add to",
    ),
    (
        r" --ray \S+|(?<=.) --[cg]pus \S+",
        "",
        "no cluster here: sweeps/test_ray_backend.py",
    ),
    (r"^(dafp reproduce .*--profile paper.*)", r"\1 --list", "days of GPU time; a dry run minutes"),
    (r"^(dafp reproduce (?!.*--(?:list|dry-run)).*)", r"\1 --dry-run", "hours"),
    (r"^(python benchmarks/lite\.py.*)", r"\1 --dry-run", "hours; and it writes the page"),
    (
        r"^(python benchmarks/(?:heuristics|evidence|training_settings)\.py).*",
        r"\1 --dry-run",
        "minutes to hours; and they write pages and results",
    ),
    (
        r"^(python benchmarks/(?:deploy|own_network)\.py).*",
        r"\1 --help",
        "minutes, on an idle machine",
    ),
    (r"^dafp data get cifar10.*", "dafp data list", "139 MB; see tests/data/test_download.py"),
    (r"torchvision:resnet50", "resnet20", "torchvision is an environment of its own (make zoo)"),
    (r"^(dafp (?:prune|bench)) vgg16 (.*)", r"\1 vgg11 \2 --width 0.125", "a small one: seconds"),
    (r"^(dafp bench .*)", r"\1 --seconds 0.02", "two seconds each otherwise"),
    (
        r"--target latency=",
        "--target macs=",
        "a busy machine may refuse: latency/test_target.py",
    ),
)
PYTHON_INSTEAD = (
    (r"batches, test=labelled", "batches, test=batches, floor=0", "a model without training"),
    (r'(runtimes=\["eager", "onnx"\])', r"\1, seconds=0.02", "two seconds each otherwise"),
    (r"to_latency\((.*)\)\n", r"measured(to_latency, \1)\n", "as for --target latency="),
    (r"range\(40\)", "range(3)", "so many epochs are not needed to see that it works"),
)  # fmt: skip
ELSEWHERE = (
    r"Trainer|trainer|accelerator|yolo|YOLO"  # blocks that need a tool's own objects: the examples
)
# have the same lines, and tests/test_examples.py runs them


# ---- what commands and code assume ---------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Iterator[Path]:
    """A directory with the files that the pages assume; what commands write stays there."""
    folder = tmp_path_factory.mktemp("docs")
    for name in ("benchmarks", "examples", "src", "Makefile", "pyproject.toml", "constraints.txt"):
        if (ROOT / name).exists():
            (folder / name).symlink_to(ROOT / name)
    narrow = build("vgg11", width=0.125).eval()  # stands for vgg16: see INSTEAD
    torch.save(narrow.state_dict(), folder / "vgg16.pth")
    dafp.save(narrow, folder / "large.safetensors")
    dafp.save(narrow, folder / "whole.safetensors")
    torch.save(build("resnet20").state_dict(), folder / "resnet20.pth")
    draw_shapes(folder / "photos", 8, spoilt=False)
    Image.new("RGB", (40, 40), "red").save(folder / "photo.png")
    names = tuple(f"class {number}" for number in range(10))
    info = ModelInfo(input=(3, 32, 32), mean=(0.5,) * 3, std=(0.2,) * 3, classes=names)
    to_onnx(with_info(narrow, info), torch.zeros(1, 3, 32, 32), folder / "classifier.onnx")
    dafp.save(dafp.slim(narrow, torch.randn(1, 3, 32, 32)), folder / "small.safetensors")
    net = next(b for b in python_blocks(PAGES["docs/own-model.md"]) if "class Net" in b.text)
    (folder / "mynets.py").write_text(net.text + "\n\ndef make_net():\n    return Net()\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(folder)
        run_command(f"dafp run {TINY}")  # runs/default
        yield folder


def assumed() -> dict[str, Any]:
    """The names that Python blocks assume: a model, trained a little, and what belongs to it."""
    torch.manual_seed(0)

    class MyLayer(nn.Module):
        def __init__(self):
            super().__init__()
            self.strength = nn.Parameter(torch.full((8, 1, 1), 2.0))

        def forward(self, x):
            return x * self.strength

    def train_one_epoch(model, optimizer):
        x, y = torch.randn(8, 3, 32, 32), torch.randint(10, (8,))
        for _ in range(4):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model.train()(x), y).backward()
            optimizer.step()

    def measured(to_latency, *args, **kwargs):
        inspect.signature(to_latency).bind(*args, **kwargs)
        return SimpleNamespace(plan=plan)

    model = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), MyLayer(),
        nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    example = x = torch.randn(1, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    train_one_epoch(model, optimizer)
    model.eval()
    graph = dafp.trace(model, example)
    batches = [torch.randn(16, 3, 32, 32)]
    scores = dafp.criteria.dependency_aware(model, graph)
    plan = dafp.selection.to_target(scores, graph)
    small = dafp.prune(model, graph, plan)
    return {**locals(), "torch": torch, "nn": nn, "dafp": dafp}


@pytest.fixture(scope="module", autouse=True)
def mylib() -> Iterator[None]:
    """The operator of somebody's library that how-it-works.md teaches."""
    library = torch.library.Library("mylib", "DEF")
    library.define("op(Tensor x) -> Tensor")
    yield
    library._destroy()


# ---- commands ------------------------------------------------------------------------------------


def changed(text: str, rules: Any = INSTEAD) -> str:
    for pattern, replacement, _ in rules:
        text = re.sub(pattern, replacement, text)
    return text


def run_command(command: str) -> None:
    """Run it; `dafp` in this process, as importing torch each time would take minutes in all."""
    words = shlex.split(command)
    if words[0] == "pip":
        extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        wanted = re.findall(r"(?:dafp|\.)\[(.*?)\]", command)
        assert wanted or command.endswith(" -e ."), f"what does {command!r} install?"
        assert {e for w in wanted for e in w.split(",")} <= set(extras["optional-dependencies"])
    elif words[0] == "dafp":
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", words)
            done = CliRunner().invoke(cli.app, words[1:])
        assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}"
    else:
        path = [str(Path(dafp.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        programs = (
            f'python() {{ {sys.executable} "$@"; }}; '
            'torchrun() { python -m torch.distributed.run "$@"; }'
        )
        done = subprocess.run(
            ["bash", "-c", f"{programs}; {command}"], check=False, capture_output=True, text=True,
            timeout=900, env={**os.environ, "PYTHONPATH": os.pathsep.join(path)},
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize(
    "name",
    slow_except(
        ("README.md",),
        [n for n, text in PAGES.items() if commands(text)],
        reason="trains, and starts processes",
    ),
)
def test_the_commands_of_a_page_work(name, place):
    for command in commands(PAGES[name]):
        run_command(changed(command))


@pytest.mark.parametrize("rule", range(len(INSTEAD)))
def test_a_rule_that_changes_commands_is_needed(rule):
    typed = [command for text in PAGES.values() for command in commands(text)]
    assert any(re.search(INSTEAD[rule][0], changed(c, INSTEAD[:rule])) for c in typed)


def check_words(command: str) -> None:
    """Command, options, files and targets of a line exist, whatever INSTEAD makes of it."""
    words = shlex.split(command)
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert set(words[1:]) <= set(targets), command
    if words[0] == "python" and words[1].endswith(".py"):
        assert (ROOT / words[1]).is_file(), command
    if "dafp" in words:
        here: Any = typer.main.get_command(cli.app)
        words = words[words.index("dafp") + 1 :]
        while hasattr(here, "commands") and words and not words[0].startswith("-"):
            assert words[0] in here.commands, command
            here = here.commands[words.pop(0)]
        known = {o for p in here.params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        assert {w.split("=")[0] for w in words if w.startswith("--")} <= known, command


@pytest.mark.parametrize("name", PAGES)
def test_commands_options_and_files_that_a_page_names_exist(name):
    for command in (*commands(PAGES[name]), *inline_commands(PAGES[name])):
        check_words(command)


@pytest.mark.parametrize(
    "wrong", ["dafp run --sed 1", "dafp runs", "dafp data fetch x", "make dinner", "python no.py"]
)
def test_a_wrong_command_would_be_found(wrong):
    with pytest.raises(AssertionError):
        check_words(wrong)


def test_a_command_of_a_page_that_fails_would_be_found(place):
    with pytest.raises(AssertionError, match="there is no preset 'moon'"):
        run_command("dafp run --preset moon")


# ---- Python --------------------------------------------------------------------------------------


WITH_PYTHON = [name for name, text in PAGES.items() if python_blocks(text)]


@pytest.mark.parametrize(
    "name",
    slow_except(set(WITH_PYTHON) - {"docs/deploy.md"}, WITH_PYTHON, reason="exports, 10 s"),
)
def test_the_python_of_a_page_works_and_prints_what_the_page_shows(name, place):
    names = assumed()
    code = list(blocks(PAGES[name]))
    for block, following in zip(code, [*code[1:], None], strict=True):
        if block.language not in ("python", "py") or re.search(ELSEWHERE, block.text):
            continue
        text = changed(block.text + "\n", PYTHON_INSTEAD)
        where = "\n" * (block.line - 1) + text  # so that an error names the line of the page
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(where, str(ROOT / name), "exec"), names)
        if following is not None and following.language == "text":
            assert printed.getvalue().rstrip("\n") == following.text


# ---- the site ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> dict[Path, Page]:
    """The pages of the site, built as `make docs` does."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        check=False, cwd=ROOT, capture_output=True, text=True, timeout=900,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return {path: Page(path) for path in folder.rglob("*.html") if path.name != "404.html"}


@pytest.mark.slow(reason="builds the site, 15 s")
def test_every_page_is_in_the_site(site):
    assert len(site) == len(PAGES) - len(READMES)


@pytest.mark.slow(reason="builds the site, 15 s")
def test_links_of_the_site_lead_to_pages_and_anchors_that_exist(site):
    broken = []
    for path, page in site.items():
        for link in (*page.links, *page.fetched):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            found = target.is_file()
            if found and parts.fragment and target.suffix == ".html":
                found = unquote(parts.fragment) in site[target].ids
            if not found:
                broken.append((path.name, link))
    assert broken == []


@pytest.mark.slow(reason="builds the site, 15 s")
def test_a_browser_fetches_nothing_of_the_site_from_elsewhere(site):
    pages_ask = {link for page in site.values() for link in page.fetched if urlsplit(link).netloc}
    home = next(path for path in site if path.name == "api.html").parent
    address = re.compile(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')]+)")
    styles = {a for sheet in home.rglob("*.css") for a in address.findall(sheet.read_text())}
    assert (pages_ask, styles) == (set(), set())


@pytest.mark.slow(reason="builds the site, 15 s")
def test_the_reference_has_every_public_name(site):
    page = next(page for path, page in site.items() if path.name == "api.html")
    modules = {"criteria", "errors", "selection", "DafpError"}  # DafpError is dafp.errors.DafpError
    missing = [n for n in dafp.__all__ if n not in modules and f"dafp.{n}" not in page.ids]
    assert missing == []


@pytest.mark.parametrize("name", PAGES)
def test_files_that_a_page_links_to_exist(name):
    home = (ROOT / name).parent
    assert [link for link in links(PAGES[name]) if not (home / unquote(link)).exists()] == []


# ---- the code that pages describe ----------------------------------------------------------------

SOURCE = ROOT / "src" / "dafp"
WALKED = re.findall(r"^\| (`.+?`) \| `(\w+)` \|", PAGES["docs/architecture.md"], re.MULTILINE)


@pytest.mark.parametrize(("files", "function"), WALKED)
def test_functions_of_the_architecture_page_exist(files, function):
    text = "".join((SOURCE / name).read_text() for name in re.findall(r"`(.+?)`", files))
    assert re.search(rf"^ *def {function}\(", text, re.MULTILINE)


def test_files_of_the_page_on_tracing_are_those_of_the_package():
    named = set(re.findall(r"(\w+\.py)`", PAGES["src/dafp/tracing/README.md"]))
    files = {path.name for path in (SOURCE / "tracing").rglob("*.py")}
    assert named == files - {"__init__.py"}


def test_the_picture_of_the_packages_shows_all_of_them():
    drawn = re.findall(
        r'font-weight="600">(\w+)<', (ROOT / "docs/pictures/packages.svg").read_text()
    )
    packages = {path.parent.name for path in SOURCE.glob("*/*.py")}
    modules = {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}
    assert sorted(drawn) == sorted(packages | modules)


# ---- how pages are read --------------------------------------------------------------------------


def test_commands_are_read_from_fenced_and_indented_blocks_without_comments():
    fenced = "```console\n$ make x\nX=1 torchrun y\n```\n```\nS = 1\npython z.py\n```\n"
    text = f"a\n\n    dafp a --b  # c\n\n{fenced}"
    assert commands(text) == ["dafp a --b", "make x", "X=1 torchrun y", "python z.py"]
    assert [block.line for block in blocks(text)] == [3, 6, 10]


def test_a_line_of_a_shell_block_that_is_no_known_command_is_refused():
    with pytest.raises(ValueError, match="line 2 is no command that the tests know: 'curl x'"):
        commands("```sh\ncurl x\n```\n")
