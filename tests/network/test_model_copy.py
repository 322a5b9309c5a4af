"""Copies of models that copy.deepcopy alone would refuse, or copy too much of."""

import torch
from torch import nn

from dafp.network.model_copy import deep_copy


def test_a_copy_of_a_compiled_module_is_not_compiled():
    model = nn.Sequential(nn.Conv2d(3, 4, 1))
    model[0]._compiled_call_impl = model[0]._call_impl  # what Module.compile() sets
    assert deep_copy(model)[0]._compiled_call_impl is None


def test_results_of_a_forward_pass_in_a_list_are_copied_without_their_history():
    model = nn.Linear(2, 3)
    model.outputs = [model(torch.ones(1, 2))]
    (copied,) = deep_copy(model).outputs
    assert torch.equal(copied, model.outputs[0])
    assert copied.is_leaf
    assert copied.data_ptr() != model.outputs[0].data_ptr()


class Views(nn.Module):
    """A buffer, and a plain attribute and a list that see the same numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.zeros(4))
        self.square = self.table.view(2, 2)
        self.parts = [self.table[1:3]]


def test_tensors_that_share_their_numbers_share_those_of_the_copy():
    model = Views()
    copied = deep_copy(model)
    copied.table.fill_(1)
    assert torch.equal(copied.square, torch.ones(2, 2))
    assert torch.equal(copied.parts[0], torch.ones(2))
    assert not bool(model.table.any())


def test_a_set_of_the_model_is_not_that_of_its_copy():
    model = nn.BatchNorm2d(2)
    deep_copy(model)._non_persistent_buffers_set.add("running_mean")
    assert model._non_persistent_buffers_set == set()
