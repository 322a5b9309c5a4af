"""Write files atomically: no reader ever sees an incomplete file."""

import contextlib
import os
from pathlib import Path

from ..errors import FileError


def write_atomically(path: Path, data: bytes) -> None:
    """Write to a temporary name in the same directory, then rename."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.writing")
    try:
        with open(aside, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except OSError as error:
        raise FileError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)
