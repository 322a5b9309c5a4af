"""One forward pass of a skeleton under a `LabelMode`: labels its tensors, runs it, keeps outputs.

run_network.py uses it for the first runs, width_check.py for trials of other widths.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import TraceError
from ..graph.trace_log import Location, TraceLog
from ..network.calling import call_on, own_copy, plain_attention, tensors_in
from ..network.named_tensors import modules_of, tensors_of
from .call import Call, OperatorRule
from .dispatch import LabelMode
from .label_tracker import ChannelInfo, LabelTracker
from .labels import on_axis

Label = Callable[[str, int], Tensor | None]  # (tensor name, axis) -> its labels


def label_tensors(tracker: LabelTracker, model: nn.Module, label: Label) -> None:
    """Assign labels to every axis of every tensor of the model."""
    for name, tensor in tensors_of(model).items():
        tracker.names[tensor] = name
        if not isinstance(tensor, nn.Parameter):
            tracker.buffers.add(name)
        if not tensor.is_floating_point():
            tracker.integers[id(tensor)] = name
            tracker.sizes[name] = tensor.numel()
            continue
        facets = []
        for axis in labelled_axes(tensor):
            ids = label(name, axis)
            if ids is not None:
                facets.append(on_axis(ids, axis, tensor.dim()))
        if facets:
            tracker.set_info(tensor, ChannelInfo(tuple(facets), True, name=name))


def labelled_axes(tensor: Tensor) -> list[int]:
    """Axes that may carry channels: all but the kernel axes of convolutions."""
    axes = range(tensor.dim())
    if tensor.dim() >= 4 and tensor.shape[0] > 1:
        axes = range(2)
    return [axis for axis in axes if tensor.shape[axis] > 1]


def new_labels(log: TraceLog, model: nn.Module) -> Label:
    """Create labels for all axes of all tensors."""
    numbers: dict[tuple[str, int], Tensor] = {}
    for name, tensor in tensors_of(model).items():
        if tensor.is_floating_point():
            for axis in labelled_axes(tensor):
                block = log.new_block(name, axis, tensor.shape[axis])
                numbers[name, axis] = torch.arange(block.start, block.start + block.size)
    return lambda name, axis: numbers.get((name, axis))


def name_modules(model: nn.Module, running: list[str]) -> None:
    """Register hooks that keep the names of the running modules in `running`, innermost last.

    The hooks are not removed: the model is a skeleton. Its copies share the list.
    """
    for name, module in modules_of(model):
        module.register_forward_pre_hook(lambda m, a, n=name: running.append(n))
        module.register_forward_hook(lambda m, a, o: _leave(running), always_call=True)


def note_bare_norms(mode: LabelMode, model: nn.Module) -> dict[str, Tensor]:
    """Instance norms without tensors -> the channels that their `num_features` counts.

    The dictionary is filled while the model runs.
    """
    widths: dict[str, Tensor] = {}
    for name, module in modules_of(model):
        if isinstance(module, nn.modules.instancenorm._InstanceNorm) and not tensors_of(module):
            module.register_forward_pre_hook(
                lambda m, args, n=name: _note_width(mode, m, args, widths, n)
            )
    return widths


def _note_width(
    mode: LabelMode, norm: nn.Module, args: tuple[Any, ...], widths: dict[str, Tensor], name: str
) -> None:
    for facet in mode.tracker.facets(args[0]) if args else ():
        if facet.numel() == norm.num_features:
            widths.setdefault(name, facet.reshape(-1))


def _leave(running: list[str]) -> None:
    running.pop()


@contextmanager
def ruled(
    mode: LabelMode, model: nn.Module, module_rules: Mapping[Any, OperatorRule]
) -> Iterator[None]:
    """Context manager: modules run under the rule of their class or of their name, if any."""
    handles: list[_Restore] = []
    for name, module in modules_of(model) if module_rules else ():
        keys = (*type(module).__mro__, name)
        rule = next((module_rules[key] for key in keys if key in module_rules), None)
        if rule is not None:
            vars(module)["forward"] = _ruled(mode, module, rule)
            handles.append(_Restore(module))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _Restore:
    def __init__(self, module: nn.Module) -> None:
        self.module = module

    def remove(self) -> None:
        vars(self.module).pop("forward", None)


def _ruled(mode: LabelMode, module: nn.Module, rule: OperatorRule) -> Callable[..., Any]:
    """A forward that runs without recording, and then applies the rule."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        call = Call(mode.tracker, type(module), args, kwargs, mode.running[-1])
        call.module = module
        mode.paused = True
        try:
            call.out = type(module).forward(module, *args, **kwargs)
        finally:
            mode.paused = False
        names = (mode.tracker.names.get(tensor) for tensor in tensors_of(module).values())
        mode.reached.update(name for name in names if name is not None)
        rule(call)
        return call.out

    return forward


def _article(out: Any) -> str:
    return "None" if out is None else f"an object of type {type(out).__name__}"


def run_pass(
    mode: LabelMode, model: nn.Module, example: Any, module_rules: Mapping[Any, OperatorRule]
) -> Any:
    """Run the model once. The channels of its outputs are kept."""
    mode.running[:] = [""]
    example = own_copy(example)
    with torch.no_grad(), plain_attention(), ruled(mode, model, module_rules), mode:
        out = call_on(model, example)
    tensors = tensors_in(out)
    if not tensors and not model.training:
        raise TraceError(
            f"the model gives {_article(out)}, in which no tensor is found, so nothing could be "
            "verified; let its forward return a tensor, or a tuple, list, dict or dataclass of them"
        )
    for tensor in tensors:
        for facet in mode.tracker.facets(tensor):
            mode.tracker.keep(facet, Location("output", ""), "an output of the model")
    return out
