"""The SHA-256 of a file."""

import hashlib
from pathlib import Path

from ..errors import FileError


def file_digest(file: Path) -> str:
    """The SHA-256 of the file's content, in hex."""
    try:
        with open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise FileError(f"{file} cannot be read: {error.strerror}") from error
