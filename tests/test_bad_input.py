"""What dafp says when it is given something it cannot use; and that it leaves everything alone."""

import json
import math
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn

import dafp
from dafp import PruningPlan, criteria, selection
from dafp.errors import (
    DafpError,
    FileError,
    ModelError,
    PlanError,
    TargetError,
    TraceError,
    VerificationError,
)

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def net(width: int = 8) -> nn.Sequential:
    """Conv-BN-ReLU twice and a classifier, in a mixture of modes that nobody may change."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, width, 3), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, 12, 3), nn.BatchNorm2d(12), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 5),
    )  # fmt: skip
    for module in model:
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    model.train()
    model[1].eval()
    return model


class Wide(nn.Module):
    """Takes 3 channels and insists on it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] != 3:
            raise ValueError("I want three colours")
        return self.conv(x).mean((2, 3))


def snapshot(model: nn.Module) -> tuple[dict[str, Tensor], dict[str, bool], set[str]]:
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    modes = {name: module.training for name, module in model.named_modules()}
    return state, modes, {name for m in model.modules() for name in vars(m)}


@contextmanager
def refused(error: type[DafpError], *words: str, model: nn.Module | None = None) -> Iterator[None]:
    """The block raises this error, its message has these words, and the model stays as it was."""
    before = None if model is None else snapshot(model)
    with pytest.raises(error) as caught:
        yield
    for word in words:
        assert word in str(caught.value)
    if model is not None:
        state, modes, attributes = snapshot(model)
        torch.testing.assert_close(state, before[0], rtol=0, atol=0, equal_nan=True)
        assert (modes, attributes) == before[1:]


def setting(value: Any) -> Any:
    return pytest.mark.parametrize("value", value, ids=repr)


# ---- models and examples -------------------------------------------------------------------------


def test_something_that_is_no_module_is_refused():
    with refused(TraceError, "nn.Module", "str"):
        dafp.trace("vgg16", X)


def test_an_example_of_the_wrong_shape_is_refused_with_its_shape_and_the_models_own_error():
    model = net()
    with refused(TraceError, "Sequential", "float32 [2, 4, 8, 8]", "expected input", model=model):
        dafp.trace(model, torch.randn(2, 4, 8, 8))


def test_an_example_without_a_batch_that_the_model_refuses_names_the_shape():
    model = net()
    with refused(
        TraceError, "float32 [7]", "The example must be what the model takes", model=model
    ):
        dafp.trace(model, torch.randn(7))


def test_the_error_of_the_models_own_forward_is_shown():
    model = Wide()
    with refused(
        TraceError, "Wide", "[1, 2, 8, 8]", "ValueError: I want three colours", model=model
    ):
        dafp.trace(model, torch.randn(1, 2, 8, 8))


def test_an_example_of_the_wrong_kind_is_refused():
    model = net()
    with refused(TraceError, "a tuple of arguments or a dict", model=model):
        dafp.trace(model, {"image": X})


def test_cost_refuses_an_example_that_the_model_refuses():
    model = net()
    with refused(TraceError, "float32 [2, 4, 8, 8]", "expected input", model=model):
        dafp.cost(model, torch.randn(2, 4, 8, 8))


def test_a_dataparallel_wrapper_is_refused_and_says_to_give_its_module():
    model = net()
    with refused(TraceError, "DataParallel", "model.module", "wrap", model=model):
        dafp.trace(nn.DataParallel(model), X)


def test_a_ddp_wrapper_is_refused_and_says_to_give_its_module():
    model = net()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        with refused(TraceError, "DistributedDataParallel", "model.module", model=model):
            dafp.trace(wrapped, X)
    finally:
        dist.destroy_process_group()


def test_a_compiled_model_is_refused_and_says_to_give_the_original():
    model = net()
    with warnings.catch_warnings():  # torch.compile imports modules that torch itself deprecated
        warnings.simplefilter("ignore", DeprecationWarning)
        compiled = torch.compile(model)
    with refused(TraceError, "torch.compile", "model._orig_mod", model=model):
        dafp.trace(compiled, X)


def test_a_script_module_is_refused_and_says_to_give_the_python_module():
    model = net()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(model)
    with refused(TraceError, "ScriptModule", "Python module", model=model):
        dafp.trace(scripted, X)


def test_a_compiled_or_scripted_part_is_refused_by_its_name():
    model = net()
    model[3] = torch.compile(model[3], backend="eager")
    with refused(TraceError, "'3' is compiled", "_orig_mod"):
        dafp.trace(model, X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.jit is deprecated
        model[3] = torch.jit.script(nn.Conv2d(8, 12, 3))
    with refused(TraceError, "'3' is a ScriptModule"):
        dafp.trace(model, X)


def test_a_model_without_numbers_or_made_for_inference_is_refused():
    with refused(TraceError, "'0.weight' is on the meta device"):
        dafp.trace(net().to("meta"), X)
    with torch.inference_mode():
        model = net()
    with refused(TraceError, "'0.weight' was made under torch.inference_mode"):
        dafp.trace(model, X)


def test_a_model_that_cannot_be_copied_is_refused_and_says_why():
    model = net()
    model.lock = threading.Lock()
    with refused(TraceError, "Sequential cannot be copied", "lock", "remove from the model"):
        dafp.trace(model, X)


@pytest.mark.parametrize(
    ("example", "words"),
    [
        (X[:0], "empty, of shape [0, 3, 8, 8]"),
        (X.to("meta"), "on the meta device"),
    ],
)
def test_an_example_without_rows_or_numbers_is_refused(example, words):
    model = net()
    with refused(TraceError, words, model=model):
        dafp.trace(model, example)


def test_an_output_without_tensors_is_refused_because_nothing_could_be_verified():
    class Sums(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = net()

        def forward(self, x: Tensor) -> None:
            self.body(x)

    with refused(TraceError, "gives None", "no tensor is found"):
        dafp.trace(Sums().eval(), X)


def test_an_error_in_a_rule_is_reported_as_such():
    def rule(call: Any) -> None:
        call.nothing_like_it()

    with refused(TraceError, "the rule for ReLU failed in '2'", "nothing_like_it"):
        dafp.trace(net(), X, rules={nn.ReLU: rule})


def test_keep_takes_nothing_or_texts():
    assert len(dafp.trace(net(), X, keep=None).groups) == 2
    with refused(TraceError, "keep=(3,)", "names or patterns"):
        dafp.trace(net(), X, keep=[3])


def test_an_uninitialised_lazy_module_is_refused_and_says_to_run_it_once():
    model = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
    with refused(TraceError, "'0.weight'", "lazy", "run the model once"):
        dafp.trace(model, X)
    assert isinstance(model[0].weight, nn.parameter.UninitializedParameter)


def test_a_quantised_module_is_refused_and_says_to_prune_first():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = nn.Sequential(nn.Linear(4, 4), torch.ao.nn.quantized.dynamic.Linear(4, 4))
    with refused(TraceError, "'1'", "quantised", "prune the float model"):
        dafp.trace(model, torch.randn(2, 4))


def test_an_unknown_residual_mode_lists_what_is_allowed():
    model = net()
    with refused(TraceError, "residual='drop'", "'keep'", "'couple'", model=model):
        dafp.trace(model, X, residual="drop")


def test_a_keep_pattern_that_matches_nothing_is_refused_and_lists_the_layers():
    model = net()
    with refused(TraceError, "keep='layer9.*'", "matches no layer", "0, 1, 3", model=model):
        dafp.trace(model, X, keep=["layer9.*"])


def test_a_keep_pattern_with_a_range_that_is_none_is_refused():
    model = net()
    with refused(TraceError, "keep='0[0:x]'", model=model):
        dafp.trace(model, X, keep=["0[0:x]"])


# ---- shares, units, criteria ---------------------------------------------------------------------

OUTSIDE = setting([0, 1, 0.0, 1.0, -0.5, 1.5, 50, math.nan, math.inf])


@OUTSIDE
@pytest.mark.parametrize("rule", [selection.uniform, selection.global_ranking])
def test_a_ratio_outside_0_and_1_is_refused(rule, value):
    with refused(PlanError, f"ratio={value!r}", "(0, 1)", "ratio=0.5"):
        rule({"a": torch.rand(4)}, value)


@OUTSIDE
def test_a_p_outside_0_and_1_is_refused(value):
    with refused(PlanError, f"p={value!r}", "(0, 1)", "p=0.5"):
        selection.local_threshold({"a": torch.rand(4)}, value)


@OUTSIDE
def test_a_target_outside_0_and_1_is_refused(value):
    model = net()
    graph = dafp.trace(model, X)
    scores = criteria.l1_norm(model, graph)
    with refused(PlanError, f"target={value!r}", "(0, 1)", model=model):
        selection.to_target(scores, graph, target=value)


@OUTSIDE
def test_slim_refuses_a_ratio_outside_0_and_1_and_does_not_change_the_model(value):
    model = net()
    with refused(PlanError, f"{value!r}", "(0, 1)", model=model):
        dafp.slim(model, X, ratio=value)


def test_an_unknown_unit_lists_what_is_allowed():
    model = net()
    with refused(PlanError, "unit='flops'", "filters", "params", "macs", model=model):
        dafp.slim(model, X, unit="flops")


def test_an_unknown_criterion_lists_what_is_allowed():
    model = net()
    with refused(PlanError, "criterion='magnitude'", "dependency_aware", "l1_norm", model=model):
        dafp.slim(model, X, criterion="magnitude")


def test_an_unknown_norm_lists_what_is_allowed():
    model = net()
    graph = dafp.trace(model, X)
    with refused(PlanError, "norm='l7'", "'frobenius'", "'mean_abs'", model=model):
        criteria.dependency_aware(model, graph, norm="l7")


@setting([{"min_channels": -1}, {"round_to": 0}, {"round_to": -8}])
def test_a_floor_or_rounding_that_makes_no_sense_is_refused(value):
    with refused(PlanError, *(f"{key}={number}" for key, number in value.items())):
        selection.uniform({"a": torch.rand(4)}, 0.5, **value)


@setting([math.nan, math.inf, -1.0])
def test_scores_that_are_not_finite_or_negative_are_refused_with_the_group(value):
    scores = {"good": torch.rand(4), "bad": torch.tensor([1.0, value])}
    with refused(PlanError, "'bad'", "finite, non-negative"):
        selection.global_ranking(scores, 0.5)


@setting(["0.5", None, torch.tensor(0.5), 0.5 + 0j])
def test_a_share_that_is_no_plain_number_is_refused(value):
    model = net()
    scores = criteria.l1_norm(model, graph := dafp.trace(model, X))
    words = (type(value).__name__, "not a number", "=0.5")
    for rule in (selection.local_threshold, selection.global_ranking, selection.uniform):
        with refused(PlanError, *words):
            rule(scores, value)
    with refused(PlanError, f"target={value!r}", *words):
        selection.to_target(scores, graph, value)
    with refused(PlanError, *words, model=model):
        dafp.slim(model, X, ratio=value)


@pytest.mark.parametrize("name", ["min_channels", "round_to"])
@setting([1.5, 2.0, "2", None])
def test_a_floor_or_step_that_is_no_whole_number_is_refused(name, value):
    with refused(PlanError, f"{name}={value!r} must be a whole number"):
        selection.uniform({"a": torch.rand(8)}, 0.5, **{name: value})


@setting(["uniform", None])
def test_a_rule_that_is_no_function_is_refused(value):
    model = net()
    graph = dafp.trace(model, X)
    with refused(PlanError, f"rule={value!r}", "dafp.selection.uniform"):
        selection.to_target(criteria.l1_norm(model, graph), graph, rule=value)


@setting([[1.0, 2.0], None, torch.ones(2)])
def test_a_criterion_that_does_not_return_scores_by_group_is_refused(value):
    model = net()
    with refused(PlanError, type(value).__name__, "group.name", model=model):
        dafp.slim(model, X, criterion=lambda model, graph: value)
    with refused(PlanError, type(value).__name__, "group.name"):
        selection.uniform(value, 0.5)


def test_a_criterion_that_returns_lists_is_refused_with_the_group():
    def lists(model: nn.Module, graph: dafp.ChannelGraph) -> Any:
        return {group.name: [1.0] * group.size for group in graph.groups}

    model = net()
    with refused(PlanError, "'0'", "list", "give a tensor", model=model):
        dafp.slim(model, X, criterion=lists)


def test_no_scores_at_all_are_refused():
    with refused(PlanError, "no scores", "no group that can be pruned"):
        selection.uniform({}, 0.5)


def test_scores_for_another_model_are_refused():
    model = net()
    graph = dafp.trace(model, X)
    with refused(PlanError, "'elsewhere'", "another model", model=model):
        selection.to_target({"elsewhere": torch.rand(8)}, graph)


@pytest.mark.parametrize("unit", ["filters", "params", "macs"])
def test_an_unreachable_target_is_refused_with_the_largest_share_and_the_reason(unit):
    model = net()
    graph = dafp.trace(model, X)
    scores = criteria.l1_norm(model, graph)
    words = (f"target=0.97 of {unit}", "at most 0.", "min_channels", "Ask for less")
    with refused(TargetError, *words, model=model):
        selection.to_target(scores, graph, target=0.97, unit=unit, min_channels=3)


def test_the_share_in_the_message_is_the_largest_that_can_be_reached():
    model = net()
    graph = dafp.trace(model, X)  # 20 filters in two groups: at most 18 can go
    scores = criteria.l1_norm(model, graph)
    with refused(
        TargetError, "at most 0.9000 can be removed", "2 channels are kept by min_channels"
    ):
        selection.to_target(scores, graph, target=0.96)
    plan = selection.to_target(scores, graph, target=0.9)
    assert [len(kept) for kept in plan.keep.values()] == [1, 1]


def test_an_unreachable_target_names_what_is_kept():
    model = net()
    graph = dafp.trace(model, X, keep=["3"])
    scores = criteria.l1_norm(model, graph)
    with refused(TargetError, "17 filters are kept", "'3'", "keep='3'", model=model):
        selection.to_target(scores, graph, target=0.9, unit="params")


def test_the_cost_of_a_batch_without_rows_is_refused():
    model = net()
    with refused(TraceError, "float32 [0, 3, 8, 8]", "at least 1", model=model):
        dafp.cost(model, X[:0])


# ---- weights -------------------------------------------------------------------------------------

CRITERIA = ["dependency_aware", "shift_aware", "l1_norm", "l2_norm", "geometric_median"]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf], ids=repr)
@pytest.mark.parametrize("name", CRITERIA)
def test_a_weight_that_is_not_finite_is_refused_by_name(name, bad):
    model = net()
    graph = dafp.trace(model, X)
    with torch.no_grad():
        model[3].weight[2, 1, 0, 0] = bad
    with refused(PlanError, "3.weight", "NaN or infinity", "finite weights", model=model):
        getattr(criteria, name)(model, graph)


@pytest.mark.parametrize("name", ["bn_scale", "dependency_aware", "shift_aware"])
def test_a_scale_that_is_not_finite_is_refused_by_name(name):
    model = net()
    graph = dafp.trace(model, X)
    with torch.no_grad():
        model[4].weight[2] = math.nan
    with refused(PlanError, "4.weight", "NaN or infinity", model=model):
        getattr(criteria, name)(model, graph)


def test_statistics_that_are_not_finite_fail_verification_with_that_reason():
    model = net()
    graph = dafp.trace(model, X)
    model[4].running_mean[:] = math.nan
    plan = selection.uniform(criteria.l1_norm(model, graph), 0.5)
    with refused(VerificationError, "not finite", "NaN or infinite weights", model=model):
        dafp.prune(model, graph, plan)


@pytest.mark.parametrize("floor", [1, 3])
def test_an_all_zero_layer_keeps_its_floor_and_can_be_pruned(floor):
    model = net()
    with torch.no_grad():
        model[0].weight.zero_()
        model[1].weight.zero_()
        model[3].weight.zero_()
    graph = dafp.trace(model, X)
    for name in (*CRITERIA, "bn_scale"):
        scores = getattr(criteria, name)(model, graph)
        plan = selection.local_threshold(scores, 0.5, min_channels=floor)
        assert min(len(kept) for kept in plan.keep.values()) >= floor
        assert len(plan.keep["0"]) == floor
        dafp.prune(model, graph, plan)


def test_taylor_without_batches_is_refused_and_changes_no_mode():
    model = net()
    graph = dafp.trace(model, X)
    with refused(PlanError, "no batches", model=model):
        criteria.taylor(model, graph, [])


def test_taylor_leaves_the_mode_of_every_module_as_it_was():
    model = net()
    graph = dafp.trace(model, X)
    before = snapshot(model)
    criteria.taylor(model, graph, [(X, torch.tensor([0, 1]))])
    assert snapshot(model)[1] == before[1]


# ---- plans ---------------------------------------------------------------------------------------

APPLY = pytest.mark.parametrize("apply", [dafp.prune, dafp.mask], ids=["prune", "mask"])


@APPLY
def test_a_plan_that_names_an_unknown_group_is_refused(apply):
    model = net()
    graph = dafp.trace(model, X)
    words = ("'layer1.conv'", "another model", "Groups here: 0, 3")
    with refused(PlanError, *words, model=model):
        apply(model, graph, PruningPlan({"layer1.conv": (0, 1)}))


@APPLY
def test_a_plan_for_another_width_is_refused_with_both_widths(apply):
    model, wide = net(8), net(16)
    plan = selection.uniform(criteria.l1_norm(wide, dafp.trace(wide, X)), 0.5)
    graph = dafp.trace(model, X)
    with refused(PlanError, "'0'", "16", "8 channels", "another width", model=model):
        apply(model, graph, plan)


@APPLY
def test_a_plan_that_keeps_a_channel_out_of_range_is_refused(apply):
    model = net()
    graph = dafp.trace(model, X)
    with refused(PlanError, "channel 8 of '0'", "8 channels", model=model):
        apply(model, graph, PruningPlan({"0": (0, 8)}))


def test_a_plan_that_contradicts_its_own_sizes_is_refused():
    with refused(PlanError, "channel 9 of 'a'", "4 channels"):
        PruningPlan({"a": (0, 9)}, {"a": 4})


@setting([(0, 0, 1), (2, 1), (-1, 0)])
def test_a_plan_with_duplicated_unordered_or_negative_channels_is_refused(value):
    with refused(PlanError, "'a'", str(list(value)), "distinct"):
        PruningPlan({"a": value})


@setting([[0.7, 1.2], [0.0, 1.0], torch.tensor([0.0, 1.0]), "01", [None], 3, None, [False, True],
          torch.tensor([True])])  # fmt: skip
def test_kept_channels_that_are_no_whole_numbers_are_refused(value):
    with refused(PlanError, "plan for 'a' keeps", "whole numbers"):
        PruningPlan({"a": value})


@setting([[0, 2], (0, 2), range(0, 3, 2), torch.tensor([0, 2]), torch.tensor([0, 2]).numpy(),
          [torch.tensor(0), torch.tensor(2)]])  # fmt: skip
def test_kept_channels_may_come_in_anything_that_holds_whole_numbers(value):
    assert PruningPlan({"a": value}).keep == {"a": (0, 2)}


def test_a_plan_made_from_something_without_group_names_is_refused():
    with refused(PlanError, "keep is a list", "name of"):
        PruningPlan([0, 1])


@APPLY
@setting([None, {"0": (0,)}, "plan"])
def test_something_that_is_no_plan_is_refused(apply, value):
    model = net()
    graph = dafp.trace(model, X)
    with refused(PlanError, type(value).__name__, "give a PruningPlan", model=model):
        apply(model, graph, value)


@APPLY
def test_something_that_is_no_model_or_graph_is_refused(apply):
    model = net()
    graph, plan = dafp.trace(model, X), PruningPlan({})
    for pair in ((model, None), (model, plan), (None, graph)):
        with refused(PlanError, "expected a model and its graph", "dafp.trace", model=model):
            apply(*pair, plan)


def test_an_empty_group_can_be_masked():
    model = net().eval()
    graph = dafp.trace(model, X)
    masked = dafp.mask(model, graph, PruningPlan({"3": ()}))
    torch.testing.assert_close(masked(X), model[8].bias.expand(2, 5))


def test_an_empty_group_cannot_be_pruned_and_the_layer_is_named():
    model = net()
    graph = dafp.trace(model, X)
    scores = {"0": torch.rand(8), "3": torch.zeros(12)}
    plan = selection.local_threshold(scores, 0.5, min_channels=0)
    assert plan.keep["3"] == ()
    words = ("no channel of '3'", "min_channels=1", "mask()")
    with refused(PlanError, *words, model=model):
        dafp.prune(model, graph, plan)


GARBAGE = ["", "{", "[]", "null", "7", '"plan"', "{}", '{"dafp_plan": 1}',
           '{"dafp_plan": 1, "keep": [], "sizes": {}}',
           '{"dafp_plan": 1, "keep": {"a": 3}, "sizes": {}}',
           '{"dafp_plan": 1, "keep": {"a": ["x"]}, "sizes": {}}',
           '{"dafp_plan": 1, "keep": {"a": "01"}, "sizes": {}}',
           '{"dafp_plan": 1, "keep": {"a": [0.5]}, "sizes": {}}',
           '{"dafp_plan": 1, "keep": {"a": [0]}, "sizes": {"a": "many"}}',
           '{"dafp_plan": 1, "keep": {}, "sizes": {}, "before": {"price": 1}}',
           '{"dafp_plan": 1, "keep": {"a": [0]}}']  # fmt: skip


@setting(GARBAGE)
def test_text_that_is_no_plan_is_refused(value):
    with refused(PlanError, "plan"):
        PruningPlan.from_json(value)


def test_a_plan_of_a_later_format_is_refused_with_its_number():
    with refused(PlanError, "format 2", "reads format 1"):
        PruningPlan.from_json('{"dafp_plan": 2, "keep": {}, "sizes": {}}')


@APPLY
def test_a_graph_from_another_model_is_refused(apply):
    model, other = net(8), net(16)
    graph = dafp.trace(other, X)
    plan = selection.uniform(criteria.l1_norm(other, graph), 0.5)
    with refused(PlanError, "another model", "Trace this model", model=model):
        apply(model, graph, plan)


@pytest.mark.parametrize("name", [*CRITERIA, "bn_scale"])
def test_a_criterion_refuses_a_graph_from_another_model(name):
    model = Wide()
    graph = dafp.trace(net(), X)
    with refused(DafpError, "another model", model=model):
        getattr(criteria, name)(model, graph)


def test_an_unknown_group_in_explain_lists_the_groups():
    graph = dafp.trace(net(), X)
    with refused(PlanError, "'9'", "groups are 0, 3"):
        graph.explain("9")


def test_a_model_that_was_not_pruned_has_no_plan_to_show():
    model = net()
    with refused(PlanError, "Sequential", "not pruned by dafp.prune", model=model):
        dafp.plan_of(model)


# ---- files ---------------------------------------------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A pruned network in a file; nothing may be left beside it."""
    dafp.save(dafp.slim(net(), X, ratio=0.5), tmp_path / "small.safetensors")
    return tmp_path / "small.safetensors"


def split(path: Path) -> tuple[dict[str, Any], dict[str, Any], bytes]:
    """The file's header, dafp's own header inside it, and the bytes of the tensors."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    return header, json.loads(header["__metadata__"]["dafp"]), raw[8 + length :]


def join(path: Path, header: dict[str, Any], own: Any, data: bytes) -> None:
    header["__metadata__"]["dafp"] = own if isinstance(own, str) else json.dumps(own)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def test_a_file_that_is_only_rewritten_still_loads(saved):
    join(saved, *split(saved))
    dafp.load(saved, net())


def test_a_missing_file_is_named(tmp_path):
    with refused(FileError, "there is no file", "nowhere.safetensors"):
        dafp.load(tmp_path / "nowhere.safetensors", net())


def test_a_directory_in_place_of_a_file_is_refused(tmp_path):
    with refused(FileError, str(tmp_path)):
        dafp.load(tmp_path, net())


@pytest.mark.parametrize("share", [0.0, 0.001, 0.3, 0.9, 0.999])
def test_a_truncated_file_is_refused(saved, share):
    raw = saved.read_bytes()
    saved.write_bytes(raw[: int(share * len(raw))])
    model = net()
    with refused(FileError, "small.safetensors", "damaged", model=model):
        dafp.load(saved, model)


@pytest.mark.parametrize("place", [0, 7, 8, 30])
def test_flipped_header_bytes_are_refused(saved, place):
    raw = bytearray(saved.read_bytes())
    raw[place] ^= 0xFF
    saved.write_bytes(raw)
    model = net()
    with refused(FileError, "small.safetensors", model=model):
        dafp.load(saved, model)


def test_flipped_bytes_of_a_weight_are_refused(saved):
    raw = bytearray(saved.read_bytes())
    raw[-2] ^= 0x40
    saved.write_bytes(raw)
    with refused(FileError, "damaged"):
        dafp.load(saved, net())


CHANGES: dict[str, Any] = {
    "format": 99,
    "base": "0" * 32,
    "fingerprint": "0" * 32,
    "plan": "{}",
    "attributes": {"no.such.layer": {"in_channels": 1}},
    "selections": ["3"],
}


@pytest.mark.parametrize("field", CHANGES)
def test_a_changed_header_is_refused(saved, field):
    header, own, data = split(saved)
    own[field] = CHANGES[field]
    join(saved, header, own, data)
    model = net()
    with refused(FileError, model=model):
        dafp.load(saved, model)


@pytest.mark.parametrize("field", ["class", "model", "base", "plan", "attributes", "selections"])
def test_a_header_that_lacks_a_field_is_refused(saved, field):
    header, own, data = split(saved)
    del own[field]
    join(saved, header, own, data)
    with refused(FileError, "small.safetensors", field):
        dafp.load(saved, net())


@pytest.mark.parametrize("field", ["model", "plan", "attributes", "selections", "base"])
@pytest.mark.parametrize("value", [7, [7], {"a": 7}], ids=str)
def test_a_header_with_a_field_of_the_wrong_kind_is_refused(saved, field, value):
    header, own, data = split(saved)
    own[field] = value
    join(saved, header, own, data)
    with refused(FileError):
        dafp.load(saved, None if field == "model" else net())


@setting(["", "{", "[]", "null", "7", '"dafp"'])
def test_a_header_that_is_no_header_is_refused(saved, value):
    header, _, data = split(saved)
    join(saved, header, value, data)
    with refused(FileError, "small.safetensors"):
        dafp.load(saved, net())


@setting([{"stride": [2, 2]}, {"in_channels": 99}, {"training": "no"}, {"forward": "gone"}])
def test_changed_attributes_do_not_load_as_another_network(saved, value):
    header, own, data = split(saved)
    own["attributes"].setdefault("0", {}).update(value)
    join(saved, header, own, data)
    with refused(FileError):
        dafp.load(saved, net())


def test_a_file_cannot_choose_a_function_to_call(saved, tmp_path, monkeypatch):
    (tmp_path / "evil_module.py").write_text(
        "from pathlib import Path\nfrom torch import nn\n"
        f"def build():\n    Path({str(tmp_path / 'called')!r}).touch()\n    return nn.ReLU()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    header, own, data = split(saved)
    own["model"] = {"name": "evil_module:build", "classes": None, "width": 1.0}
    join(saved, header, own, data)
    with refused(FileError):
        dafp.load(saved)
    assert not (tmp_path / "called").exists()


def test_a_safetensors_file_that_dafp_did_not_write_is_refused(tmp_path):
    save_file(net().state_dict(), tmp_path / "plain.safetensors")
    model = net()
    with refused(FileError, "plain.safetensors", "dafp did not write it", "weights", model=model):
        dafp.load(tmp_path / "plain.safetensors", model)


def test_a_file_that_is_no_safetensors_is_refused(tmp_path):
    (tmp_path / "notes.safetensors").write_text("milk, bread, butter\n" * 20)
    model = net()
    with refused(FileError, "notes.safetensors", "no safetensors file", model=model):
        dafp.load(tmp_path / "notes.safetensors", model)


def test_a_file_for_another_architecture_is_refused(saved):
    model = net(16)
    with refused(FileError, "another architecture", "Sequential", "unpruned", model=model):
        dafp.load(saved, model)


def test_a_file_does_not_load_into_a_model_that_is_already_pruned(saved):
    model = dafp.slim(net(), X, ratio=0.5)
    with refused(FileError, "unpruned instance", model=model):
        dafp.load(saved, model)


@setting([None, "net"])
def test_something_that_is_no_model_is_not_saved(value, tmp_path):
    with refused(FileError, "nn.Module", type(value).__name__):
        dafp.save(value, tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_class_in_place_of_an_instance_is_refused(saved):
    with refused(FileError, "instance of Sequential", "<class"):
        dafp.load(saved, nn.Sequential)


def test_a_file_of_a_users_class_asks_for_an_instance(saved):
    with refused(FileError, "Sequential", "dafp.load(path, model)"):
        dafp.load(saved)


def test_reading_bad_files_leaves_nothing_behind(saved):
    saved.write_bytes(saved.read_bytes()[:-100])
    with refused(FileError):
        dafp.load(saved, net())
    assert [p.name for p in saved.parent.iterdir()] == [saved.name]


def test_a_failed_save_leaves_no_file_behind(tmp_path):
    model = net()
    with refused(FileError, "cannot write", model=model):
        dafp.save(model, tmp_path / "no" / "such" / "directory.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_model_name_lists_what_is_allowed():
    with refused(ModelError, "'lenet'", "vgg11", "preresnet20", "package.module:function"):
        dafp.models.build("lenet")
