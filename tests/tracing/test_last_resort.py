"""After too many trials, channels are kept: what trace returns can be pruned."""

import pytest

import dafp
from dafp.criteria import l1_norm
from dafp.selection import uniform
from dafp.tracing import tracer
from support import zoo

NEED_TRIALS = [
    "rearranged attention",
    "list split",
    "chunk",
    "GLU by chunk",
    "res2",
    "numbered view",
]


@pytest.mark.parametrize("name", NEED_TRIALS)
def test_a_network_that_needs_too_many_trials_is_traced_to_the_end(name, monkeypatch):
    net = zoo.BY_NAME[name]
    model, x = net.model().eval(), net.example()
    free = dafp.trace(model, x, residual="couple", **net.kwargs)
    monkeypatch.setattr(tracer, "MAX_TRIALS", 0)
    graph = dafp.trace(model, x, residual="couple", **net.kwargs)
    assert not any("still does not run" in note for note in graph.notes)
    assert graph.filters < free.filters, "it needs the trials to prune everything"
    reasons = {kept.reason for kept in graph.kept}
    assert "the forward contains this width as a number" in reasons
    assert graph.groups, "not everything is kept"
    small = dafp.prune(model, graph, uniform(l1_norm(model, graph), 0.5))
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())
