"""Running a model on an example or a batch: arguments, outputs, modes and random state."""

import gc
import inspect
import logging
import sys
from collections.abc import Iterable, Iterator, Mapping, Set, ValuesView
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from ..errors import PlanError

# what a forward may raise for a wrong input, wrong widths, or tensors without data;
# NotImplementedError is a RuntimeError
FORWARD_ERRORS = (
    RuntimeError,
    ValueError,
    TypeError,
    IndexError,
    KeyError,
    AttributeError,
    AssertionError,
    ArithmeticError,
)


def call_model(model: nn.Module, example: Any) -> Any:
    """tensor → model(x), tuple → model(*x), dict → model(**x).

    The model gets copies of the tensors: a forward may write into its inputs (`x *= 255`).
    """
    return call_on(model, own_copy(example))


def own_copy(example: Any) -> Any:
    """The example with copies of its tensors."""
    return tree_map(lambda v: v.clone() if isinstance(v, Tensor) else v, example)


def call_on(model: nn.Module, example: Any) -> Any:
    """`call_model` without copies."""
    if isinstance(example, Mapping):
        return model(**example)
    if isinstance(example, (tuple, list)):
        return model(*example)
    return model(example)


def input_of(model: nn.Module, batch: Any) -> Any:
    """The input in a batch: all of it, or the first of an (input, target) pair.

    The whole pair is the input if the model's forward needs two arguments.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        return batch
    parameters = inspect.signature(model.forward).parameters.values()
    needed = [p for p in parameters if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if len(needed) > 1:
        return batch
    return (batch[0],) if _are_images(batch[0]) else batch[0]


def batches_of(batches: Any, what: str) -> Iterator[Any]:
    """An iterator over batches. A single tensor is rejected: it would be split into rows."""
    if isinstance(batches, (Tensor, Mapping, str)) or not isinstance(batches, Iterable):
        raise PlanError(
            f"{what} takes batches, one after another, not a {type(batches).__name__}; give a list "
            "of them or a data loader"
        )
    return iter(batches)


def run_on(model: nn.Module, batch: Any, number: int) -> Any:
    """Run the model on the input of a batch; an error names the batch."""
    try:
        return call_model(model, input_of(model, batch))
    except FORWARD_ERRORS as error:
        raise PlanError(
            f"the model does not run on batch {number} ({describe(batch)}): "
            f"{type(error).__name__}: {error}. A batch is an input, or an (input, target) pair"
        ) from error


def tensors_in(value: Any) -> list[Tensor]:
    """All tensors in a model's output, also in objects that pytree does not know."""
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
    """The values of the attributes of an object, in its __dict__ or its __slots__."""
    names = [n for kind in type(value).__mro__ for n in _slots(kind) if hasattr(value, n)]
    return [*getattr(value, "__dict__", {}).values(), *(getattr(value, name) for name in names)]


def _slots(kind: type) -> tuple[str, ...]:
    slots = vars(kind).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def batch_of(example: Any) -> int:
    """Batch size of the example: the size of the first axis of its first tensor.

    Detectors take a list of images, each of three axes: there it is the length of the list.
    """
    if takes_images(example):
        return len(_first_argument(example))
    for leaf in tree_leaves(example):
        if isinstance(leaf, Tensor) and leaf.dim() > 0:
            return leaf.shape[0]
    return 1


def takes_images(example: Any) -> bool:
    """Is the first argument a list of images, as a detector takes it?"""
    return _are_images(_first_argument(example))


def _first_argument(example: Any) -> Any:
    if isinstance(example, Mapping):
        return next(iter(example.values()), None)
    return next(iter(example), None) if isinstance(example, (tuple, list)) else example


def _are_images(value: Any) -> bool:
    """Is this a list of images without batch axes, of any sizes?"""
    listed = isinstance(value, (list, tuple)) and len(value) > 0
    return listed and all(isinstance(v, Tensor) and v.dim() == 3 for v in value)


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
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Context manager: run in eval mode, and restore the mode of every module afterwards."""
    modes = [(vars(module), module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for attributes, mode in modes:
            attributes["training"] = mode  # nn.Module's own way takes ten times as long


@contextmanager
def fixed_seed(model: nn.Module) -> Iterator[None]:
    """Context manager: seed random numbers with 0, and restore the random state afterwards."""
    held = model.parameters() if torch.cuda.is_initialized() else ()
    devices = list({p.device for p in held if p.device.type == "cuda"})
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(0)
        for device in devices:
            torch.cuda.default_generators[device.index or 0].manual_seed(0)
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Context manager: no log messages of torch about expected failures on fake tensors."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def no_compilation() -> Iterator[None]:
    """Context manager: functions that the forward compiles with torch.compile run as they are.

    The compiler would also compile what dafp does in every operator call.
    """
    if "torch._dynamo" not in sys.modules:  # importing it takes seconds
        yield
        return
    with torch.compiler.set_stance("force_eager"):
        yield


@contextmanager
def plain_attention() -> Iterator[None]:
    """Context manager: attention runs as matrix products and a softmax, not as one operator."""
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Context manager: no garbage collection, which would visit every object again and again."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()
