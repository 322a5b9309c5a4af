"""The leaves of the arguments and outputs of operators."""

from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn


def leaves(value: Any) -> list[Any]:
    """The leaves of nested lists, tuples and dicts. Faster than torch's pytree."""
    found: list[Any] = []
    _gather(value, found)
    return found


def _gather(value: Any, found: list[Any]) -> None:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, (list, tuple)):
        found.append(value)
        return
    for part in value:
        if type(part) not in _LEAVES and isinstance(part, (list, tuple, dict)):
            _gather(part, found)
        else:
            found.append(part)


_LEAVES = frozenset((Tensor, nn.Parameter, int, float, bool, type(None)))  # most of them


def tensors_and_values(args: Any, kwargs: Any) -> tuple[list[Tensor], list[Any]]:
    """The tensors among the arguments of an operator, and all other leaves."""
    given = leaves((args, kwargs) if kwargs else args)
    tensors = [v for v in given if isinstance(v, Tensor)]
    return tensors, [v for v in given if not isinstance(v, Tensor)]


def numbers_in(values: Iterable[Any]) -> tuple[float, ...]:
    """All plain numbers among these leaves."""
    return tuple(v for v in values if isinstance(v, (int, float)))


def ints_in(value: Any) -> tuple[int, ...]:
    """All whole numbers among the arguments of an operator."""
    return tuple(v for v in leaves(value) if type(v) is int)
