"""Parameters of a test of which only some run every time."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_except(quick: Container[Any], values: Iterable[Any], *, reason: str) -> list[Any]:
    """The values as parameters; those that are not `quick` are marked slow for this reason."""
    mark = pytest.mark.slow(reason=reason)
    return [
        value
        if value in quick
        else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
        for value in values
    ]
