"""The table of methods by family: the same in the code, the documentation and `dafp methods`."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dafp import cli, methods
from dafp.methods.origins import FAMILIES, ORIGINS

ROOT = Path(__file__).parents[2]
INDEX = (ROOT / "docs" / "methods" / "index.md").read_text("utf-8")
README = (ROOT / "README.md").read_text("utf-8")


def shown(*args):
    done = CliRunner().invoke(cli.app, ["methods", *args])
    assert done.exit_code == 0, done.output
    return done.stdout


def test_every_method_has_an_origin_in_a_family_and_no_other_name_has():
    assert set(ORIGINS) == set(methods.METHODS)
    assert {origin.family for origin in ORIGINS.values()} == set(FAMILIES)
    for name, origin in ORIGINS.items():
        assert bool(origin.authors) == bool(origin.year) == bool(origin.link), name
        assert not origin.link or origin.link.startswith("https://")


@pytest.mark.parametrize("name", ORIGINS)
def test_the_documentation_has_the_row_of_a_method(name):
    origin = ORIGINS[name]
    text = origin.description.replace("|", "\\|")
    paper = f"[{origin.paper}]({origin.link})" if origin.link else "–"
    row = f"| [`{name}`]({name}.md) | {text} | {origin.family} | {paper} |"
    assert row in INDEX
    assert f"[`{name}`](docs/methods/{name}.md)" in README


def test_the_card_of_a_method_names_the_authors_and_the_year_of_its_paper():
    for name, origin in ORIGINS.items():
        if origin.authors:
            card = (ROOT / "docs" / "methods" / f"{name}.md").read_text("utf-8")
            assert origin.authors.split()[0] in card, name
            assert str(origin.year) in card, name


def test_the_command_lists_methods_by_family_and_a_word_selects_some():
    rows = json.loads(shown("--json"))
    assert [row["name"] for row in rows] == sorted(
        ORIGINS, key=lambda name: (FAMILIES.index(ORIGINS[name].family), list(ORIGINS).index(name))
    )
    few = json.loads(shown("REGRESSION", "--json"))
    assert [row["name"] for row in few] == ["lasso"]
    assert few[0]["link"] == "https://arxiv.org/abs/1707.06168"
    assert "He et al., 2017" in " ".join(shown("regression").split())
