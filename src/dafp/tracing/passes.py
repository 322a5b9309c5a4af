"""Runs the skeleton of a network, in eval and in train mode, under the channel labels."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from ..copying import copy_with, fake_like, tensors_of
from ..record import Record, Where
from .flow import Call, Flow, Rule, Tag
from .labels import on_axis

Label = Callable[[str, int], Tensor | None]  # (tensor name, axis) -> its labels


def call_model(model: nn.Module, example: Any) -> Any:
    """tensor → model(x), tuple → model(*x), dict → model(**x)."""
    if isinstance(example, Mapping):
        return model(**example)
    if isinstance(example, (tuple, list)):
        return model(*example)
    return model(example)


def skeleton_of(model: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """The model with every floating-point tensor faked; integers stay real."""

    def replace(_: str, tensor: Tensor) -> Tensor | None:
        return fake_like(fake, tensor) if tensor.is_floating_point() else None

    return copy_with(model, replace)


def example_for(example: Any, fake: FakeTensorMode | None, times: int = 1) -> Any:
    """The example for a skeleton: without numbers (integers keep theirs), its batch repeated."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if times > 1 and value.dim() > 0:
            value = torch.cat([value] * times)
        return fake_like(fake, value) if fake is not None and value.is_floating_point() else value

    return tree_map(one, example)


def describe(example: Any) -> str:
    """Shapes and types of an example, for messages."""
    if isinstance(example, Tensor):
        return f"{str(example.dtype).removeprefix('torch.')} {list(example.shape)}"
    if isinstance(example, Mapping):
        return ", ".join(f"{key}: {describe(value)}" for key, value in example.items())
    if isinstance(example, (tuple, list)):
        return ", ".join(describe(value) for value in example)
    return type(example).__name__


def label_tensors(flow: Flow, model: nn.Module, label: Label) -> None:
    """Give every tensor of the model its labels, axis by axis."""
    for name, tensor in tensors_of(model).items():
        if not tensor.is_floating_point():
            flow.integers[id(tensor)] = name
            continue
        facets = []
        for axis in labelled_axes(tensor):
            ids = label(name, axis)
            if ids is not None:
                facets.append(on_axis(ids, axis, tensor.dim()))
        if facets:
            flow.tag(tensor, Tag(tuple(facets), True, name=name))


def labelled_axes(tensor: Tensor) -> list[int]:
    """Axes that may hold channels: not the kernel axes of a convolution."""
    axes = range(tensor.dim())
    if tensor.dim() >= 4 and tensor.shape[0] > 1:
        axes = range(2)
    return [axis for axis in axes if tensor.shape[axis] > 1]


def new_labels(record: Record, model: nn.Module) -> Label:
    """Number all axes of all tensors; the first pass does this."""
    numbers: dict[tuple[str, int], Tensor] = {}
    for name, tensor in tensors_of(model).items():
        if tensor.is_floating_point():
            for axis in labelled_axes(tensor):
                block = record.new_block(name, axis, tensor.shape[axis])
                numbers[name, axis] = torch.arange(block.start, block.start + block.size)
    return lambda name, axis: numbers.get((name, axis))


@contextmanager
def watched(flow: Flow, model: nn.Module, module_rules: Mapping[Any, Rule]) -> Iterator[None]:
    """Let the flow know which module runs, and hand over those that have a rule of their own."""
    handles: list[Any] = []
    for name, module in model.named_modules():
        handles += [
            module.register_forward_pre_hook(lambda m, a, n=name: flow.modules.append(n)),
            module.register_forward_hook(lambda m, a, o: _leave(flow), always_call=True),
        ]
        rule = next((module_rules[c] for c in type(module).__mro__ if c in module_rules), None)
        if rule is not None:
            vars(module)["forward"] = _ruled(flow, module, rule)
            handles.append(_Restore(module))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
        flow.modules[:] = [""]


def _leave(flow: Flow) -> None:
    flow.modules.pop()


class _Restore:
    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def remove(self) -> None:
        vars(self.module).pop("forward", None)


def _ruled(flow: Flow, module: nn.Module, rule: Rule) -> Callable[..., Any]:
    """A forward that runs unobserved and then lets the rule say what happened."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        call = Call(flow, type(module), args, kwargs)
        call.module = module
        flow.paused = True
        try:
            call.out = type(module).forward(module, *args, **kwargs)
        finally:
            flow.paused = False
        rule(call)
        return call.out

    return forward


def run_pass(flow: Flow, model: nn.Module, example: Any, module_rules: Mapping[Any, Rule]) -> Any:
    """One forward pass; what comes out of the model is kept."""
    with torch.no_grad(), watched(flow, model, module_rules), flow:
        out = call_model(model, example)
    for tensor in tensors_in(out):
        for facet in flow.facets(tensor):
            flow.keep(facet, Where("output", ""), "an output of the model")
    return out


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in a model's output, also inside objects that pytree does not know."""
    found: list[Tensor] = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif isinstance(leaf, Mapping):
            found += tensors_in(list(leaf.values()))
        elif hasattr(leaf, "__dict__") and not isinstance(leaf, (type, nn.Module)):
            found += tensors_in(list(vars(leaf).values()))
    return found


def batch_of(example: Any) -> int:
    """Rows of the example: the first axis of its first tensor."""
    for leaf in tree_leaves(example):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return leaf.shape[0]
    return 1
