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
