"""The examples in the docstrings of public objects run, and print what they show.

`torch`, `nn` and `dafp` are defined in every example, and the random seed is 0. Warnings are
errors, as in all tests.
"""

import doctest
import inspect

import pytest
import torch
from torch import nn

import dafp
import dafp.data
import dafp.export
import dafp.latency
import dafp.models
import dafp.recovery

PACKAGES = (dafp, dafp.criteria, dafp.selection, dafp.recovery, dafp.models, dafp.data, dafp.export,
            dafp.latency, dafp.errors)  # fmt: skip
CRITERIA = ("dependency_aware", "shift_aware", "bn_scale", "l1_norm", "l2_norm", "geometric_median",
            "random", "taylor", "reconstruction_error", "activation_norm", "loss_by_removal",
            "lasso")  # fmt: skip
MUST_HAVE_AN_EXAMPLE = [
    "dafp.Record",
    "dafp.SparseTraining",
    "dafp.SparsityController",
    *(f"dafp.criteria.{name}" for name in CRITERIA),
    "dafp.selection.local_threshold",
    "dafp.selection.global_ranking",
    "dafp.selection.uniform",
    "dafp.selection.to_target",
    "dafp.mask",
    "dafp.prune",
    "dafp.plan_of",
    "dafp.carry_over",
    "dafp.recalibrate",
    "dafp.slim",
    "dafp.reconstruct",
    "dafp.recovery.measure_damage",
    "dafp.selection.least_damage",
    "dafp.recovery.layer_sensitivity",
]


def public_objects():
    """Dotted name -> every function and class that the packages above export."""
    found = {}
    for package in PACKAGES:
        for name in getattr(package, "__all__", ()):
            value = getattr(package, name)
            if inspect.isclass(value) or inspect.isfunction(value):
                found[f"{package.__name__}.{name}"] = value
    return found


PUBLIC = public_objects()


def examples_of(name):
    """The doctests of an object and, of a class, of its methods."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    value = inspect.unwrap(PUBLIC[name])
    module = inspect.getmodule(value)
    names = {"torch": torch, "nn": nn, "dafp": dafp}
    return [test for test in finder.find(value, name, module, globs=names) if test.examples]


@pytest.mark.parametrize("name", PUBLIC)
def test_an_example_prints_what_its_docstring_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # an example may save a file
    for example in examples_of(name):
        torch.manual_seed(0)
        runner = doctest.DocTestRunner(
            optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS, verbose=False
        )
        report = []
        runner.run(example, out=report.append)
        assert runner.failures == 0, "".join(report)


@pytest.mark.parametrize("name", MUST_HAVE_AN_EXAMPLE)
def test_a_main_function_has_an_example_with_its_output(name):
    examples = [line for test in examples_of(name) for line in test.examples]
    assert any(line.want for line in examples), f"{name} has no example that prints a result"
