"""Lock files: one process at a time, on every operating system."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from filelock import FileLock


def lock_file(file: Path, *, wait: bool = True) -> AbstractContextManager[Any]:
    """Acquire a lock in this call; the end of the `with` block, or of the process, releases it.

    Args:
        file: The lock file. It is created if needed, and stays on disk.
        wait: Whether to wait for another process that holds the lock.

    Raises:
        TimeoutError: Another process holds the lock, and `wait` is False.
        OSError: The file cannot be created.
    """
    return FileLock(file).acquire(timeout=-1 if wait else 0)
