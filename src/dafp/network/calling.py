"""Run a model on an example: with its numbers, or as a skeleton that has none."""

import gc
import inspect
import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Set, ValuesView
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import PlanError
from .model_copy import copy_with

# what a forward may raise when it does not like its input, its widths or having no numbers
FORWARD_ERRORS = (
    RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError,
    NotImplementedError, ArithmeticError,
)  # fmt: skip

Empty = Callable[[Tensor, tuple[int, ...] | None], Tensor]


@dataclass(frozen=True)
class Material:
    """What the tensors of a skeleton are made of. Integers always keep their values."""

    empty: Empty | None  # (tensor, shape) -> one without numbers; None: real numbers
    context: Callable[[], AbstractContextManager[Any]] = nullcontext


def meta_material() -> Material:
    """The quickest: no numbers, no devices. Forwards that look at their device may refuse."""

    def empty(tensor: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        if shape is None:
            return torch.empty_like(tensor, device="meta")
        return torch.empty(shape, dtype=tensor.dtype, device="meta")

    return Material(empty)


def fake_material() -> Material:
    """No numbers, but devices as they are."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    meta = meta_material().empty
    assert meta is not None

    def empty(tensor: Tensor, shape: tuple[int, ...] | None = None) -> Tensor:
        return FakeTensor(mode, meta(tensor, shape), tensor.device)

    return Material(empty, lambda: mode)


REAL = Material(None)


def materials() -> tuple[Material, ...]:
    """In the order to try them: the quickest first, real numbers last."""
    return meta_material(), fake_material(), REAL


def deep_copy(model: nn.Module) -> nn.Module:
    """copy.deepcopy, also for models that hold results of a forward pass as attributes."""
    return copy_with(model, lambda _, tensor: None)


def sharing_copy(model: nn.Module, lent: Container[str]) -> nn.Module:
    """A deep copy, but for the numbers of the tensors that are lent: these are the model's own."""
    return copy_with(model, lambda name, tensor: tensor.detach() if name in lent else None)


def skeleton_of(model: nn.Module, material: Material) -> nn.Module:
    """A copy of the model, its floating-point tensors made of this material."""
    empty = material.empty
    if empty is None:
        return deep_copy(model)
    return copy_with(
        model, lambda _, t: empty(t, None) if t.is_floating_point() else t.detach().clone()
    )


def example_for(example: Any, material: Material, times: int = 1) -> Any:
    """The example, made of this material, its batch repeated."""

    def one(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if material.empty is not None and value.is_floating_point():
            rows = (times * value.shape[0], *value.shape[1:]) if value.dim() else ()
            return material.empty(value, tuple(rows))
        return torch.cat([value] * times) if times > 1 and value.dim() else value

    return tree_map(one, example)


def call_model(model: nn.Module, example: Any) -> Any:
    """tensor → model(x), tuple → model(*x), dict → model(**x)."""
    if isinstance(example, Mapping):
        return model(**example)
    if isinstance(example, (tuple, list)):
        return model(*example)
    return model(example)


def input_of(model: nn.Module, batch: Any) -> Any:
    """What of a batch the model takes: all of it, or the first of an (input, target) pair."""
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return batch
    parameters = inspect.signature(model.forward).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    return batch[0] if len(needed) < 2 else batch


def batches_of(batches: Any, what: str) -> Iterator[Any]:
    """The batches, if they are several; a single tensor would be taken apart row by row."""
    if isinstance(batches, (Tensor, Mapping, str)) or not isinstance(batches, Iterable):
        raise PlanError(
            f"{what} takes batches, one after another, not a {type(batches).__name__}; give a list "
            "of them or a data loader"
        )
    return iter(batches)


def run_on(model: nn.Module, batch: Any, number: int) -> Any:
    """What the model gives for the input of a batch; the batch is told if it does not run."""
    try:
        return call_model(model, input_of(model, batch))
    except FORWARD_ERRORS as error:
        raise PlanError(
            f"the model does not run on batch {number} ({describe(batch)}): "
            f"{type(error).__name__}: {error}. A batch is an input, or an (input, target) pair"
        ) from error


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in a model's output, also inside objects that pytree does not know."""
    found: list[Tensor] = []
    for leaf in tree_leaves(value):
        if isinstance(leaf, Tensor):
            found.append(leaf)
        elif isinstance(leaf, Mapping):
            found += tensors_in(list(leaf.values()))
        elif isinstance(leaf, (Set, ValuesView, Iterator)):
            found += tensors_in(list(leaf))
        elif not isinstance(leaf, (type, nn.Module)):
            found += tensors_in(_held_by(leaf))
    return found


def _held_by(value: Any) -> list[Any]:
    """What the attributes of an object are, in its __dict__ or its __slots__."""
    names = [n for kind in type(value).__mro__ for n in _slots(kind) if hasattr(value, n)]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name) for name in names)]


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def batch_of(example: Any) -> int:
    """Rows of the example: the first axis of its first tensor."""
    for leaf in tree_leaves(example):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return leaf.shape[0]
    return 1


def describe(example: Any) -> str:
    """Shapes and types of an example, for messages."""
    if isinstance(example, Tensor):
        return f"{str(example.dtype).removeprefix('torch.')} {list(example.shape)}"
    if isinstance(example, Mapping):
        return ", ".join(f"{key}: {describe(value)}" for key, value in example.items())
    if isinstance(example, (tuple, list)):
        return ", ".join(describe(value) for value in example)
    return type(example).__name__


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, the mode of every module as it was after."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def same_chance(model: nn.Module) -> Iterator[None]:
    """Random numbers inside start from the same seed; the caller's are not touched."""
    devices = list({p.device for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(0)
        for device in devices:
            torch.cuda.default_generators[device.index or 0].manual_seed(0)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Where a failing operator is a finding, torch should not log it as an error."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def uncollected() -> Iterator[None]:
    """No search for garbage inside: it looks at every object again and again, and finds nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
