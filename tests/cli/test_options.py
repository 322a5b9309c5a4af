"""Options of commands: quick to import, and the same as the arguments of the work functions."""

import importlib
import inspect
import subprocess
import sys
import typing

import pytest

from dafp import choices, criteria, data, methods, reproduce, selection
from dafp.cli import COMMANDS, DATA_COMMANDS, options
from dafp.criteria.table import DATA_FREE
from dafp.latency import runtimes
from dafp.training import config

CALLS = [(), *((name,) for name in COMMANDS), ("data",), *(("data", n) for n in DATA_COMMANDS)]
ALL = {**COMMANDS, **{f"data {name}": command for name, command in DATA_COMMANDS.items()}}
HELP = """
import sys
from dafp.cli import app
for call in {calls}:
    app([*call, "--help"], standalone_mode=False)
    assert "torch" not in sys.modules, call
print("LOADED", *{{name.split(".")[0] for name in sys.modules}})
"""


def test_help_of_every_command_is_shown_without_importing_torch():
    code = HELP.format(calls=CALLS)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == len(CALLS)
    loaded = set(done.stdout.rpartition("LOADED")[2].split())
    assert "typer" in loaded
    assert loaded & {"torch", "numpy", "scipy", "PIL", "accelerate", "safetensors"} == set()


@pytest.mark.parametrize("name", ALL)
def test_a_command_takes_the_options_that_it_declares(name):
    command = ALL[name]
    module, _, function = command.work.partition(":")
    work = getattr(importlib.import_module(f"dafp.cli.{module}"), function)
    declared = typing.get_type_hints(command.options)  # without what typer adds by Annotated
    assert typing.get_type_hints(work) == declared
    assert list(inspect.signature(work).parameters) == list(
        inspect.signature(command.options).parameters
    )


def test_every_declaration_of_options_is_in_the_table():
    declared = {
        function
        for module in vars(options).values()
        if inspect.ismodule(module)
        for function in vars(module).values()
        if inspect.isfunction(function)
    }
    assert declared == {command.options for command in ALL.values()}


@pytest.mark.parametrize(
    ("names", "table"),
    [
        (choices.METHODS, methods.METHODS),
        (choices.CRITERIA, DATA_FREE),
        (choices.PRESETS, config.PRESETS),
        (choices.DATA_SETS, data.NAMES),
        (choices.RUNTIMES, runtimes.RUNTIMES),
        ((*choices.TABLES, *choices.FIGURES), reproduce.NAMES),
    ],
)
def test_the_names_in_help_texts_are_those_of_the_library(names, table):
    assert names == tuple(table)


def test_the_rules_and_criteria_in_help_texts_are_functions():
    assert all(callable(getattr(selection, rule)) for rule in choices.RULES)
    assert all(callable(getattr(criteria, name)) for name in choices.CRITERIA)
