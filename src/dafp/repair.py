"""The old place of functions that `dafp.recovery` has now; using it warns."""

import warnings
from typing import Any

from .recovery import reconstruction as _new


def __getattr__(name: str) -> Any:
    found = getattr(_new, name)
    if not name.startswith("_"):
        warnings.warn(
            f"dafp.repair.{name} is now in dafp.recovery; the old name will go in version 0.3",
            DeprecationWarning,
            stacklevel=2,
        )
    return found
