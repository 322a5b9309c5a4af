"""Shapes known without torch's slow kernels are the shapes that torch gives."""

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from dafp.network.meta_shapes import meta_output

aten = torch.ops.aten
X, V, ROW = torch.randn(2, 6, 4, 4), torch.randn(6), torch.randn(3, 5)
TURNED = X.to(memory_format=torch.channels_last)
GATE = torch.randn(2, 6, 1, 1)

FITTING = {
    "add": (aten.add.Tensor, X, X),
    "gate": (aten.mul.Tensor, X, GATE),
    "gate first": (aten.mul.Tensor, GATE, X),
    "outer": (aten.mul.Tensor, GATE, X[:1, :1]),
    "layer scale": (aten.mul.Tensor, V.view(6, 1, 1), TURNED),
    "number": (aten.div.Tensor, X, 3.0),
    "in place": (aten.add_.Tensor, X, X),
    "mean": (aten.mean.dim, X, [2, 3], True),
    "mean without the axes": (aten.mean.dim, X, [-1, -2]),
    "sum": (aten.sum.dim_IntList, X, [0], False),
    "layer norm": (aten.native_layer_norm.default, ROW, [5], torch.ones(5), None, 1e-5),
    "group norm": (aten.native_group_norm.default, X, V, V, 2, 6, 16, 3, 1e-5),
    "linear": (aten.addmm.default, torch.ones(4), ROW, torch.randn(5, 4)),
    "product": (aten.mm.default, ROW, ROW.t()),
    "selection": (aten.index_add.default, X, 1, torch.tensor([0, 3, 5]), X[:, :3]),
    "activation": (aten.silu.default, TURNED),
}


@pytest.mark.parametrize("case", FITTING)
def test_a_shortcut_gives_the_shape_type_and_layout_that_torch_gives(case):
    op, *args = FITTING[case]
    bare = tree_map(lambda v: v.to("meta") if isinstance(v, Tensor) else v, args)
    short = meta_output(op, tuple(bare), {})
    own = tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, args)
    real = op(*own)
    pairs = zip(*([v] if isinstance(v, Tensor) else v for v in (short, real)), strict=True)
    for ours, theirs in pairs:
        assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
        assert ours.stride() == theirs.stride()


MISFITS = {
    "widths that differ": (aten.add.Tensor, X, X[:, :5]),
    "types that differ": (aten.mul.Tensor, X, X.double()),
    "whole numbers": (aten.div.Tensor, X.long(), 2.0),
    "a wider operand in place": (aten.add_.Tensor, GATE, X),
    "a norm of another width": (aten.native_layer_norm.default, ROW, [4], None, None, 1e-5),
    "weights of another width": (aten.native_group_norm.default, X, V[:5], V, 2, 6, 16, 3, 1e-5),
    "groups that do not divide": (aten.native_group_norm.default, X, V, V, 2, 6, 16, 4, 1e-5),
    "a linear layer of another width": (aten.addmm.default, torch.ones(4), ROW, torch.ones(6, 4)),
    "a selection of another width": (aten.index_add.default, X, 1, torch.arange(3), X[:, :4]),
    "a bias of another width": (aten.addmm.default, torch.ones(3), ROW, torch.ones(5, 4)),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_does_not_fit_is_left_to_torch_to_refuse(case):
    op, *args = MISFITS[case]
    bare = tree_map(lambda v: v.to("meta") if isinstance(v, Tensor) else v, args)
    assert meta_output(op, tuple(bare), {}) is NotImplemented


def test_a_keyword_that_changes_the_type_is_left_to_torch():
    bare = torch.empty(2, 3, device="meta")
    assert (
        meta_output(aten.sum.dim_IntList, (bare, [1]), {"dtype": torch.float64}) is NotImplemented
    )


def test_constants_of_a_forward_are_computed_not_only_shaped():
    places, offsets = torch.arange(8.0)[:, None], torch.arange(8.0)[None] - 7
    for func in (torch.ops.aten.sub.Tensor, torch.ops.aten.add.Tensor):
        assert meta_output(func, (places, offsets), {}) is NotImplemented
    assert meta_output(torch.ops.aten.add.Tensor, (places.to("meta"), 1.0), {}).shape == (8, 1)
