"""CIFAR-10 and CIFAR-100 in the official files: binary or Python release, packed or not."""

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .sources import Release, find, verify, verify_files
from .unpickling import unpickle

PIXELS = 3 * 32 * 32
CLASSES = {"cifar10": 10, "cifar100": 100}


def read(name: str, root: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """(pixels, labels) of train and of test, as uint8 N×3×32×32 and int64; MD5s are verified."""
    release, packed = find(name, root)
    content = _unpacked(release, root) if packed else _verified(release, root)
    decode = _from_binary if release.train[0].endswith(".bin") else _from_pickle

    def part(files: tuple[str, ...]) -> tuple[Tensor, Tensor]:
        pieces = [decode(content(file), file, name) for file in files]
        pixels = torch.from_numpy(np.concatenate([pixels for pixels, _ in pieces]))
        labels = torch.from_numpy(np.concatenate([labels for _, labels in pieces]))
        return pixels.reshape(-1, 3, 32, 32), labels.to(torch.int64)

    return part(release.train), part(release.test)


def _verified(release: Release, root: Path) -> Callable[[str], bytes]:
    verify_files(release, root)
    return lambda file: (root / release.directory / file).read_bytes()


def _unpacked(release: Release, root: Path) -> Callable[[str], bytes]:
    assert release.archive is not None
    verify(root / release.archive, release.archive)
    return members(root / release.archive, release).__getitem__


def members(archive: Path, release: Release) -> dict[str, bytes]:
    """File name -> content, for the files of a release in its archive; nothing is written."""
    found: dict[str, bytes] = {}
    wanted = {f"{release.directory}/{name}": name for name in (*release.train, *release.test)}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                name = wanted.get(member.name.removeprefix("./"))
                file = tar.extractfile(member) if name and member.isfile() else None
                if name and file is not None:
                    found[name] = file.read()
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"{archive} cannot be unpacked: {error}") from error
    missing = sorted(set(wanted.values()) - set(found))
    if missing:
        raise DataError(f"{archive} does not hold {', '.join(missing)}")
    return found


def _from_binary(data: bytes, file: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Decode records of one label byte (CIFAR-100: coarse, then fine), then R, G and B planes."""
    heads = 2 if name == "cifar100" else 1
    if not data or len(data) % (heads + PIXELS):
        raise DataError(
            f"{file} has {len(data)} bytes, no multiple of {heads + PIXELS}: it is truncated"
        )
    records = np.frombuffer(data, dtype=np.uint8).reshape(-1, heads + PIXELS)
    return records[:, heads:].copy(), _checked(records[:, heads - 1], file, name)


def _from_pickle(data: bytes, file: str, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Decode a dict: `data` (N×3072), `labels` (CIFAR-100: `fine_labels`); keys: bytes or str."""
    value = unpickle(io.BytesIO(data), file)
    if not isinstance(value, dict):
        raise DataError(f"{file} holds a {type(value).__name__}, not the dict of the release")
    named = {key.decode() if isinstance(key, bytes) else key: entry for key, entry in value.items()}
    pixels, labels = named.get("data"), named.get("fine_labels" if name == "cifar100" else "labels")
    if not isinstance(pixels, np.ndarray) or not isinstance(labels, list):
        raise DataError(f"{file} holds no images with labels; its keys are {sorted(named)}")
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS):
        raise DataError(
            f"{file} has images of {pixels.dtype} {pixels.shape} for {len(labels)} labels; "
            f"expected uint8 ({len(labels)}, {PIXELS})"
        )
    return pixels, _checked(np.asarray(labels), file, name)


def _checked(labels: np.ndarray, file: str, name: str) -> np.ndarray:
    classes = CLASSES[name]
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= classes:
        raise DataError(f"{file} has labels outside 0 to {classes - 1}")
    return labels.astype(np.int64)
