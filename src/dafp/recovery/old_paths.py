"""Old import paths of this package: they still work, and warn."""

import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any


def forward_to(module: ModuleType, old: str) -> Callable[[str], Any]:
    """A module-level `__getattr__` that takes names from `module` and warns about the old path."""

    def find(name: str) -> Any:
        found = getattr(module, name)
        if not name.startswith("_"):
            warnings.warn(
                f"{old}.{name} is now in dafp.recovery; the old path will be removed in version "
                "0.3",
                DeprecationWarning,
                stacklevel=2,
            )
        return found

    return find
