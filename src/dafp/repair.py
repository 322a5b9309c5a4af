"""The old place of `repair`; it is `dafp.recovery.reconstruction.repair` now."""

import warnings
from typing import Any

from .recovery import reconstruction


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    found = getattr(reconstruction, name)
    warnings.warn(
        f"dafp.repair.{name} has moved to dafp.recovery.reconstruction.{name}",
        DeprecationWarning,
        stacklevel=2,
    )
    return found
