"""The old place of `layer_sensitivity`; it is `dafp.recovery.layer_sensitivity` now."""

import warnings
from typing import Any

from .recovery import layer_sensitivity


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    found = getattr(layer_sensitivity, name)
    warnings.warn(
        f"dafp.sensitivity.{name} has moved to dafp.recovery.layer_sensitivity.{name}",
        DeprecationWarning,
        stacklevel=2,
    )
    return found
