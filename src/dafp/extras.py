"""Optional packages: imported when they are needed, or an error with the pip command."""

import importlib
from typing import Any

from .errors import ExtraError


def need(package: str, extra: str, purpose: str) -> Any:
    """The package, or an error with the command that installs it."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ExtraError(
            f"{purpose} needs {package}, which cannot be imported: {error}. Try: pip install "
            f'"dafp[{extra}]"'
        ) from error
