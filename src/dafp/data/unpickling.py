"""Read pickles of plain values and arrays of numbers; refuse anything else without executing it."""

import pickle
from typing import Any, BinaryIO

import numpy as np

from ..errors import DataError


def unpickle(file: BinaryIO, name: str) -> Any:
    """The content of a pickle of dicts, lists, bytes, str, numbers and arrays of numbers.

    No class or function that the file names is ever looked up: three names of numpy (in the
    spelling of numpy 1 and 2) are replaced by the classes below; every other name is an error.
    """
    try:
        return _plain(_Plain(file, encoding="bytes").load())
    except DataError as error:
        raise DataError(f"{name}: {error}") from error
    except Exception as error:
        raise DataError(f"{name} is not a pickle of images and labels: {error}") from error


class _Dtype:
    """Replaces numpy.dtype."""

    def __init__(self, code: Any, *_: Any) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code
        self.order = "|"
        if not isinstance(self.code, str) or self.code[:1] not in "biuf":
            raise DataError(f"an array of {code!r} is refused; only plain numbers are read")

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        order = state[1]
        self.order = order.decode() if isinstance(order, bytes) else order


class _Array:
    """Replaces numpy.ndarray."""

    value: np.ndarray

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _, shape, dtype, fortran, raw = state
        if not isinstance(dtype, _Dtype) or not isinstance(raw, bytes):
            raise DataError("an array that is not made of plain numbers is refused")
        flat = np.frombuffer(raw, dtype=np.dtype(dtype.order + dtype.code))
        self.value = flat.reshape(shape, order="F" if fortran else "C").copy()


class _Reconstruct(_Array):
    """Replaces numpy's function that makes an empty array, to be filled by its state."""

    def __init__(self, *_: Any) -> None:
        return


_STAND_INS = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _Reconstruct,
}


class _Plain(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _STAND_INS:
            raise DataError(
                f"it asks for {module}.{name}, which is refused: a pickle can run any code; "
                "only plain values and arrays of numbers are read"
            )
        return _STAND_INS[module, name]


def _plain(value: Any) -> Any:
    """Replace the stand-ins by arrays."""
    if isinstance(value, _Array):
        return value.value
    if isinstance(value, dict):
        return {_plain(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if value is None or isinstance(value, bytes | str | int | float):
        return value
    raise DataError(f"a {type(value).__name__} is refused; only plain values are read")
