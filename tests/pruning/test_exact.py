"""Whatever is cut out of a network, the rest computes what the masked network computes."""

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import dafp
from dafp import criteria, selection
from dafp.errors import TargetError
from support import zoo

Planner = Callable[[nn.Module, dafp.ChannelGraph], dafp.PruningPlan]
TARGET = 0.4


@dataclass(frozen=True)
class Case:
    """A network in one residual mode."""

    net: zoo.Net
    mode: str

    def __str__(self) -> str:
        return f"{self.net.name}, {self.mode}"


@dataclass(frozen=True)
class Traced:
    model: nn.Module
    state: dict[str, Tensor]  # copies, from before anything was done
    training: list[bool]
    graph: dafp.ChannelGraph


@dataclass(frozen=True)
class Cut:
    plan: dafp.PruningPlan  # resolved
    small: nn.Module
    masked: nn.Module


# a network without residual streams has one graph: see test_modes_differ_only_by_residual_streams
CASES = [
    Case(net, mode)
    for net in zoo.NETS
    for mode in ("keep", "couple")
    if mode == "keep" or net.couple != net.share
]
CRITERIA = {
    "dependency_aware": criteria.dependency_aware,
    "shift_aware": criteria.shift_aware,
    "bn_scale": criteria.bn_scale,
    "l1_norm": criteria.l1_norm,
    "l2_norm": criteria.l2_norm,
    "geometric_median": criteria.geometric_median,
    "random": criteria.random,
}


def _uniform(name: str) -> Planner:
    return lambda model, graph: selection.uniform(CRITERIA[name](model, graph), 0.5)


def _local(model: nn.Module, graph: dafp.ChannelGraph) -> dafp.PruningPlan:
    return selection.local_threshold(criteria.dependency_aware(model, graph), 0.5)


def _global(model: nn.Module, graph: dafp.ChannelGraph) -> dafp.PruningPlan:
    return selection.global_ranking(criteria.dependency_aware(model, graph), 0.5)


def _target(unit: str) -> Planner:
    def plan(model: nn.Module, graph: dafp.ChannelGraph) -> dafp.PruningPlan:
        scores = criteria.dependency_aware(model, graph)
        return selection.to_target(scores, graph, target=TARGET, unit=unit)

    return plan


UNITS = ("filters", "params", "macs")
PLANNERS: dict[str, Planner] = {
    **{name: _uniform(name) for name in CRITERIA},
    "local_threshold": _local,
    "global_ranking": _global,
    **{f"to_target {unit}": _target(unit) for unit in UNITS},
}

SELF_VERIFIED = "dependency_aware"  # elsewhere prune is told not to look: we do
DISTINCT = ("dependency_aware", "local_threshold", "global_ranking", "to_target params")  # widths

# by scope, the tests of a case follow each other: one worker traces and prunes it once
each_case = pytest.mark.parametrize("case", CASES, ids=str, scope="module")
each_planner = pytest.mark.parametrize("how", PLANNERS)


@cache
def traced(case: Case) -> Traced:
    model = case.net.model()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    training = [module.training for module in model.modules()]
    graph = dafp.trace(model, case.net.example(), residual=case.mode, **case.net.kwargs)
    return Traced(model, state, training, graph)


@cache
def cut(case: Case, how: str) -> Cut | None:
    """The plan applied, or None if its target is out of reach."""
    model, graph = traced(case).model, traced(case).graph
    try:
        plan = PLANNERS[how](model, graph)
    except TargetError:
        return None
    blind = graph if how == SELF_VERIFIED else replace(graph, example=None)
    small = dafp.prune(model, blind, plan)
    return Cut(graph.resolve(plan), small.eval(), dafp.mask(model, graph, plan).eval())


def cuts(case: Case) -> Iterator[tuple[str, Cut]]:
    for how in DISTINCT:
        made = cut(case, how)
        if made is not None:
            yield how, made


def run(model: nn.Module, example: Any) -> list[Tensor]:
    if isinstance(example, dict):
        out = model(**example)
    else:
        out = model(*example) if isinstance(example, tuple) else model(example)
    return tree_leaves(out)


def assert_same(a: nn.Module, b: nn.Module, net: zoo.Net) -> None:
    """Equal in eval mode, on the example and on fresh numbers, to 1e-5 of the largest output."""
    a.eval(), b.eval()
    for seed in (0, 1):
        example = net.example(seed)
        with torch.no_grad():
            pairs = zip(run(a, example), run(b, example), strict=True)
        for ours, theirs in pairs:
            assert bool(theirs.isfinite().all())
            allowed = 1e-5 * float(theirs.abs().max())
            torch.testing.assert_close(ours, theirs, rtol=0, atol=allowed)


def assert_bit_equal(a: nn.Module, b: nn.Module, net: zoo.Net) -> None:
    example = net.example(1)
    with torch.no_grad():
        pairs = zip(run(a.eval(), example), run(b.eval(), example), strict=True)
    for ours, theirs in pairs:
        assert torch.equal(ours, theirs)


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@each_case
@each_planner
def test_the_pruned_network_computes_what_the_masked_network_computes(case, how):
    made = cut(case, how)
    if made is not None:
        assert_same(made.small, made.masked, case.net)


@each_case
def test_as_many_filters_can_be_pruned_as_the_zoo_states(case):
    graph = traced(case).graph
    stated = case.net.share if case.mode == "keep" else case.net.couple
    channels = graph.filters + sum(line.size for line in graph.kept)
    assert graph.filters / channels >= stated - 1e-9, [str(k) for k in graph.kept]


@pytest.mark.parametrize(
    "net", [net for net in zoo.NETS if net.couple == net.share], ids=lambda net: net.name
)
def test_modes_differ_only_by_residual_streams(net):
    assert traced(Case(net, "keep")).graph.groups == traced(Case(net, "couple")).graph.groups


@each_case
def test_every_group_can_lose_a_channel(case):
    graph = traced(case).graph
    least = graph.resolve(dafp.PruningPlan({group.name: (0,) for group in graph.groups}))
    stuck = [g.name for g in graph.groups if g.size > 1 and len(least.keep[g.name]) == g.size]
    assert stuck == []


@each_case
def test_as_many_parameters_go_as_the_plan_predicts(case):
    before = parameters(traced(case).model)
    for how, made in cuts(case):
        assert before == made.plan.before.params, how
        assert parameters(made.small) == made.plan.after.params, how


@each_case
@pytest.mark.parametrize("how", CRITERIA)
def test_half_of_every_group_is_fewer_parameters(case, how):
    assert parameters(cut(case, how).small) < parameters(traced(case).model)


@each_case
def test_the_predicted_cost_is_the_counted_cost(case):
    example = case.net.example()
    for how, made in cuts(case):
        if case.net.name == "einsum" and 1 in [len(kept) for kept in made.plan.keep.values()]:
            continue  # over a single channel torch multiplies, and counts no matrix product
        assert dafp.cost(made.small, example) == made.plan.after, how


@each_case
def test_no_tensor_is_left_empty(case):
    for how, made in cuts(case):
        empty = [name for name, t in made.small.state_dict().items() if t.numel() == 0]
        assert empty == [], how


@each_case
def test_the_pruned_network_takes_a_training_step(case):
    for how, made in cuts(case):
        small = copy.deepcopy(made.small).train()
        before = [p.detach().clone() for p in small.parameters()]
        loss = sum(t.square().mean() for t in run(small, case.net.example()) if t.requires_grad)
        loss.backward()
        torch.optim.SGD(small.parameters(), lr=0.1).step()
        after = list(small.parameters())
        assert all(bool(p.isfinite().all()) for p in after), how
        assert any(not torch.equal(a, b) for a, b in zip(after, before, strict=True)), how


@each_case
@pytest.mark.parametrize("unit", UNITS)
def test_a_target_is_met_to_the_nearest_channel_or_refused_when_out_of_reach(case, unit):
    graph, made = traced(case).graph, cut(case, f"to_target {unit}")
    if made is None:
        least = graph.resolve(dafp.PruningPlan({group.name: (0,) for group in graph.groups}))
        assert selection.removed_share(graph, least, unit) < TARGET
    else:
        gap = abs(selection.removed_share(graph, made.plan, unit) - TARGET)
        assert gap <= largest_step(graph, made.plan, unit) + 1e-9


def largest_step(graph: dafp.ChannelGraph, plan: dafp.PruningPlan, unit: str) -> float:
    """The most that one more kept channel, with what must stay beside it, changes the share."""
    now, steps = selection.removed_share(graph, plan, unit), [0.0]
    for group in graph.groups:
        gone = [c for c in range(group.size) if c not in plan.keep[group.name]]
        if gone:
            kept = tuple(sorted({*plan.keep[group.name], gone[0]}))
            more = dafp.PruningPlan({**plan.keep, group.name: kept}, plan.sizes, plan.spare)
            steps.append(now - selection.removed_share(graph, more, unit))
    return max(steps)


@each_case
def test_compensation_is_the_same_for_pruned_and_masked_networks(case):
    model, graph = traced(case).model, traced(case).graph
    plan = selection.uniform(criteria.shift_aware(model, graph), 0.5)
    small = dafp.prune(model, graph, plan, compensate=True)
    assert_same(small, dafp.mask(model, graph, plan, compensate=True), case.net)


@each_case
def test_a_pruned_network_can_be_pruned_again_and_saved_and_loaded(case, tmp_path):
    once = cut(case, "dependency_aware").small
    graph = dafp.trace(once, case.net.example(), residual=case.mode, **case.net.kwargs)
    plan = selection.uniform(criteria.l2_norm(once, graph), 0.5)
    twice = dafp.prune(once, graph, plan)
    assert parameters(twice) < parameters(once)
    assert_same(twice, dafp.mask(once, graph, plan), case.net)
    for number, small in enumerate((once, twice)):
        dafp.save(small, tmp_path / f"{number}.safetensors")
        loaded = dafp.load(tmp_path / f"{number}.safetensors", case.net.model())
        assert_bit_equal(loaded, small, case.net)


@each_case
def test_the_original_is_left_untouched(case):
    list(cuts(case))
    model, state = traced(case).model, traced(case).state
    assert list(model.state_dict()) == list(state)
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert [module.training for module in model.modules()] == traced(case).training
    assert all(p.grad is None for p in model.parameters())


def test_taylor_scores_prune_exactly():
    case = Case(zoo.BY_NAME["plain"], "keep")
    model, graph = traced(case).model, traced(case).graph
    batches = [(case.net.example(seed), torch.tensor([1, 4])) for seed in range(3)]
    plan = selection.uniform(criteria.taylor(model, graph, batches), 0.5)
    small = dafp.prune(model, graph, plan)
    assert parameters(small) < parameters(model)
    assert_same(small, dafp.mask(model, graph, plan), case.net)
