"""Packages that only some commands need: imported on demand, or the pip command that is missing."""

import importlib
from typing import Any

from .errors import ExtraError


def need(package: str, extra: str, purpose: str) -> Any:
    """The package, or an error that says how to get it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ExtraError(
            f"{purpose} needs {package}, which cannot be imported: {error}. Try: pip install "
            f'"dafp[{extra}]"'
        ) from error
