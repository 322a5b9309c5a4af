"""Import optional packages when they are needed; if one is missing, name the pip command."""

import importlib
from typing import Any

from .errors import ExtraError


def need(package: str, extra: str, purpose: str) -> Any:
    """Import and return a package; ExtraError with the pip command if that fails."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ExtraError(
            f"{purpose} needs {package}, which cannot be imported: {error}. Try: pip install "
            f'"dafp[{extra}]"'
        ) from error
