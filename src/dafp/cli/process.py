"""Process-wide settings of a command: waiting threads sleep, freed memory is kept."""

import ctypes
import os
import sys

# parameters of mallopt, from glibc's malloc.h
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_MEMORY = {
    _TRIM_THRESHOLD: 2**31 - 1,  # bytes at the end of the heap that are not returned
    _TOP_PAD: 64 * 2**20,  # bytes asked for at once
    _MMAP_MAX: 0,  # blocks that are mapped alone, and so returned when they are freed
}
_VARIABLES = (
    "GLIBC_TUNABLES",
    "MALLOC_TRIM_THRESHOLD_",
    "MALLOC_TOP_PAD_",
    "MALLOC_MMAP_THRESHOLD_",
    "MALLOC_MMAP_MAX_",
)


def configure_process() -> None:
    """Let waiting threads sleep, and keep freed memory. Call it before torch is imported.

    Settings of the environment win.
    """
    # Threads that wait by spinning make training many times slower as soon as another process
    # needs a core. OpenMP reads this when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    keep_freed_memory()


def keep_freed_memory() -> bool:
    """Tell glibc not to return freed memory to the system; returns whether it was told.

    Every training step allocates the same activations anew. By default, glibc returns them in
    between, and the system maps and clears every page again, which is slow in virtual machines.
    Other C libraries and other systems are left alone.
    """
    if not sys.platform.startswith("linux") or any(name in os.environ for name in _VARIABLES):
        return False
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return False
    for parameter, value in _MEMORY.items():
        library.mallopt(parameter, value)
    return True
