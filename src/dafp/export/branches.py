"""Export of models that branch on tensor values: compute both branches, then select by value."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map, tree_structure

from ..errors import ExportError
from ..network.calling import FORWARD_ERRORS, describe

MOST = 4  # branches in sequence; each of them doubles the work
NUMBERS = (Tensor.__float__, Tensor.__int__)


class BothWays(nn.Module):
    """Computes the same outputs as the model, without a branch in Python.

    The model runs with every combination of True and False for `if tensor:`, and torch.where
    selects the outputs by the values. All branches must give outputs of the same shapes and types.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

        @wraps(model.forward)  # the inputs keep their names
        def both(*args: Any, **kwargs: Any) -> Any:
            return _every_way(lambda: model(*args, **kwargs), ())

        self.forward = both


class _Decide(TorchFunctionMode):
    """Returns the given answers for `bool(tensor)`, then True, and records the tensors.

    `tensor.item()` stays a tensor, so that a comparison of it is recorded too. `float(tensor)` must
    return a plain Python number, so comparisons of it cannot be recorded.
    """

    def __init__(self, answers: tuple[bool, ...]) -> None:
        super().__init__()
        self.answers = answers
        self.asked: list[Tensor] = []

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Any = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is Tensor.__bool__:
            return self._answer(args[0])
        if func is Tensor.item:
            return _item(args[0])
        if func in NUMBERS:
            return _number(func, args[0])
        return func(*args, **(kwargs or {}))

    def _answer(self, question: Tensor) -> bool:
        number = len(self.asked)
        if number >= MOST:
            raise ExportError(
                f"the forward takes more than {MOST} decisions that depend on numbers; both ways "
                "of all of them would be too much work. Write them as torch.where or torch.cond"
            )
        self.asked.append(question)
        return self.answers[number] if number < len(self.answers) else True


def _item(tensor: Tensor) -> Tensor:
    """The tensor's single value, in double precision as a Python float would have."""
    one = tensor.reshape(()).clone()
    return one.double() if one.is_floating_point() else one


def _number(convert: Callable[..., Any], tensor: Tensor) -> Any:
    """A Python number where torch knows the value, as for a constant."""
    try:
        return convert(tensor)
    except FORWARD_ERRORS as error:
        kind = convert.__name__.strip("_")
        raise ExportError(
            f"the forward makes a Python number of a tensor ({kind}(tensor)), which no file can "
            f"follow. Leave {kind}() away: `if x.mean() < 0.1:` is exported with both ways, and "
            "a tensor of one number computes like the number"
        ) from error


def _every_way(run: Callable[[], Any], answers: tuple[bool, ...]) -> Any:
    """Run all branches that follow these answers to the first conditions; select the outputs."""
    decide = _Decide(answers)
    with decide:
        outputs = run()
    for number in reversed(range(len(answers), len(decide.asked))):
        so_far = (*answers, *[True] * (number - len(answers)))
        other = _every_way(run, (*so_far, False))
        question = decide.asked[number].bool().reshape(())
        outputs = _picked(question, outputs, other)
    return outputs


def _picked(question: Tensor, yes: Any, no: Any) -> Any:
    """Each output, taken from the branch that the condition selects."""
    if tree_structure(yes) != tree_structure(no):
        raise _unlike(yes, no)
    return tree_map(partial(_pick, question), yes, no)


def _pick(question: Tensor, yes: Any, no: Any) -> Any:
    if isinstance(yes, Tensor) and isinstance(no, Tensor):
        if (yes.dtype, yes.shape) == (no.dtype, no.shape):  # where would broadcast and convert
            return torch.where(question, yes, no)
    elif not isinstance(yes, Tensor) and not isinstance(no, Tensor) and yes == no:
        return yes
    raise _unlike(yes, no)


def _unlike(yes: Any, no: Any) -> ExportError:
    one, other = (
        describe(way) if isinstance(way, (Tensor, Mapping, tuple, list)) else repr(way)
        for way in (yes, no)
    )
    return ExportError(
        f"the forward branches on numbers, and its ways give unlike outputs: {one} or {other}. One "
        "file has one shape and type for each output: let both ways give the same, or export each "
        "way as a model of its own"
    )
