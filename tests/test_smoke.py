"""One thin line through the whole library."""

import torch

import dafp
from dafp.models import build


def test_a_vgg_loses_half_of_its_filters_and_computes_what_the_masked_model_computes():
    model, x = build("vgg11", width=0.25).eval(), torch.randn(2, 3, 32, 32)
    graph = dafp.trace(model, x)
    plan = dafp.selection.to_target(dafp.criteria.l1_norm(model, graph), graph, target=0.5)
    small = dafp.prune(model, graph, plan)
    assert sum(len(kept) for kept in plan.keep.values()) == graph.filters // 2
    torch.testing.assert_close(small.eval()(x), dafp.mask(model, graph, plan)(x))
