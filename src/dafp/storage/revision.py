"""The revision of the code that is running, as git names it."""

import subprocess
from functools import lru_cache
from pathlib import Path


@lru_cache
def code_revision(folder: Path, default: str) -> str:
    """`git describe` of the checkout that tracks the package in `folder`.

    Args:
        folder: Directory of the package.
        default: Returned where git is missing or does not track the folder, as after `pip install`.

    Returns:
        An abbreviated commit hash (or a tag), with `-dirty` if the package has local changes.
    """
    try:
        _git(folder, "ls-files", "--error-unmatch", "__init__.py")
        changed = _git(folder, "status", "--porcelain", "--", ".")
        found = _git(folder, "describe", "--always", "--abbrev=12")
        return (found + ("-dirty" if changed else "")) or default
    except (OSError, subprocess.SubprocessError):
        return default


def _git(folder: Path, *command: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *command],
        check=True,
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.stdout.strip()
