"""Labels of a trial are compared by class, along axes where one side is constant too."""

from types import SimpleNamespace

import pytest
import torch

from dafp.tracing.trial import TrialMode

CLASSES = torch.tensor([0, 0, 2, 2])  # two heads of two dimensions


@pytest.mark.parametrize(
    ("given", "fits"),
    [
        ([[0, 1], [2, 3]], True),
        ([[0], [2]], True),  # repeated as often as it has dimensions, a head looks like one label
        ([[2], [0]], False),
        ([[0], [0]], False),
        ([[0], [2], [2]], False),
    ],
)
def test_a_head_matches_itself_if_its_dimensions_have_one_label(given, fits):
    mode = object.__new__(TrialMode)
    mode.trial = SimpleNamespace(roots=CLASSES, fits=True)
    mode._compare_labels((torch.tensor([[0, 1], [2, 3]]),), (torch.tensor(given),))
    assert mode.trial.fits == fits
