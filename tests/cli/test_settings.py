"""`dafp settings`: every setting of the configuration, with what it is for."""

import dataclasses
import json

from typer.testing import CliRunner

from dafp import cli
from dafp.training.config import Config, Schedule
from dafp.training.settings import all_run_settings, settings_as_markdown
from support.pages import ROOT


def shown(*args):
    done = CliRunner().invoke(cli.app, ["settings", *args])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_setting_is_listed_with_its_meaning():
    known = {one.name for one in all_run_settings()}
    flat = {f.name for f in dataclasses.fields(Config)} - {"baseline", "sparse", "finetune"}
    inner = {f.name for f in dataclasses.fields(Schedule)}
    stages = {f"{stage}.{name}" for stage in ("baseline", "sparse", "finetune") for name in inner}
    assert known == flat | stages
    assert {one.name for one in all_run_settings() if not one.meaning} == set()


def test_a_word_selects_settings():
    rows = json.loads(shown("warm", "--json"))
    assert {row["name"] for row in rows} == {
        "baseline.warmup", "sparse.warmup", "finetune.warmup"
    }  # fmt: skip
    assert "rises" in shown("finetune.warmup")


def test_the_page_of_settings_lists_what_the_configuration_says():
    page = (ROOT / "docs/settings.md").read_text()
    table = page.partition("<!-- settings -->")[2].partition("<!-- end of settings -->")[0]
    again = "python benchmarks/settings_page.py writes the table again"
    assert table.strip().splitlines() == settings_as_markdown(), again
