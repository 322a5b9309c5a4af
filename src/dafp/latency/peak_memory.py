"""Peak memory of a run, on Linux."""

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path

STATUS = Path("/proc/self/status")
RESET = Path("/proc/self/clear_refs")


def peak_of(action: Callable[[], object]) -> int | None:
    """Peak of resident memory during the action, in bytes above the level before it.

    None where it cannot be measured. Memory that the allocator had cached is released first.
    """
    gc.collect()
    _trim()
    before = _resident("VmRSS")
    if before is None or not _reset_peak():
        return None
    action()
    peak = _resident("VmHWM")
    return None if peak is None else max(0, peak - before)


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc only
    if trim is not None:
        trim(0)


def _reset_peak() -> bool:
    try:
        RESET.write_text("5")
    except OSError:
        return False
    return True


def _resident(field: str) -> int | None:
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", STATUS.read_text(), re.MULTILINE)
    except OSError:
        return None
    return None if found is None else int(found[1]) * 1024
