"""Where each data set comes from, how its files are named, and their MD5s."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataError


@dataclass(frozen=True)
class Release:
    """A published form of a data set; `directory` and `archive` are relative to the root."""

    directory: str
    train: tuple[str, ...]
    test: tuple[str, ...]
    archive: str | None = None  # holds `directory` with the same files in it
    url: str = ""

    @property
    def files(self) -> tuple[str, ...]:
        """All required files, as paths relative to the root."""
        return tuple(f"{self.directory}/{name}" for name in (*self.train, *self.test))


_BATCHES = tuple(f"data_batch_{number}" for number in range(1, 6))
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_HOUSE_NUMBERS = "http://ufldl.stanford.edu/housenumbers/"

RELEASES: dict[str, tuple[Release, ...]] = {
    "cifar10": (
        Release(
            "cifar-10-batches-bin",
            tuple(f"{name}.bin" for name in _BATCHES),
            ("test_batch.bin",),
            "cifar-10-binary.tar.gz",
            f"{_TORONTO}cifar-10-binary.tar.gz",
        ),
        Release(
            "cifar-10-batches-py",
            _BATCHES,
            ("test_batch",),
            "cifar-10-python.tar.gz",
            f"{_TORONTO}cifar-10-python.tar.gz",
        ),
    ),
    "cifar100": (
        Release(
            "cifar-100-binary",
            ("train.bin",),
            ("test.bin",),
            "cifar-100-binary.tar.gz",
            f"{_TORONTO}cifar-100-binary.tar.gz",
        ),
        Release(
            "cifar-100-python",
            ("train",),
            ("test",),
            "cifar-100-python.tar.gz",
            f"{_TORONTO}cifar-100-python.tar.gz",
        ),
    ),
    "svhn": (Release("svhn", ("train_32x32.mat",), ("test_32x32.mat",), url=_HOUSE_NUMBERS),),
}

# As published with the data sets and by the libraries that read them. The MD5s of CIFAR-10's .bin
# files were taken from files whose SHA-1s are the published ones.
MD5: dict[str, str] = {
    "cifar-10-binary.tar.gz": "c32a1d4ab5d03f1284b67883e8d87530",
    "cifar-10-batches-bin/data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
    "cifar-10-batches-bin/data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
    "cifar-10-batches-bin/data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
    "cifar-10-batches-bin/data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
    "cifar-10-batches-bin/data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
    "cifar-10-batches-bin/test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    "cifar-10-python.tar.gz": "c58f30108f718f92721af3b95e74349a",
    "cifar-10-batches-py/data_batch_1": "c99cafc152244af753f735de768cd75f",
    "cifar-10-batches-py/data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "cifar-10-batches-py/data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "cifar-10-batches-py/data_batch_4": "634d18415352ddfa80567beed471001a",
    "cifar-10-batches-py/data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "cifar-10-batches-py/test_batch": "40351d587109b95175f43aff81a1287e",
    "cifar-100-binary.tar.gz": "03b5dce01913d631647c71ecec9e9cb8",
    "cifar-100-binary/train.bin": "6172c7755cfe09b2fe270c85cebc1b15",
    "cifar-100-binary/test.bin": "4499cfba6c016c1be1438163640a0898",
    "cifar-100-python.tar.gz": "eb9058c3a382ffc7106e4002c42a8d85",
    "cifar-100-python/train": "16019d7e3df5f24257cddd939b257f8d",
    "cifar-100-python/test": "f0ef6b0ae62326f3e7ffdfab6717acfc",
    "svhn/train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
    "svhn/test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
}


def find(name: str, root: Path) -> tuple[Release, bool]:
    """The release found under `root`, and whether it is an archive; files take precedence."""
    for release in RELEASES[name]:
        if (root / release.directory).is_dir():
            missing = [file for file in release.files if not (root / file).is_file()]
            if not missing:
                return release, False
            if release.archive is None or not (root / release.archive).is_file():
                raise DataError(f"{name}: {_listed(missing)} missing in {root}; {advice(name)}")
        if release.archive is not None and (root / release.archive).is_file():
            return release, True
    raise DataError(f"{name}: there is no {RELEASES[name][0].directory} in {root}; {advice(name)}")


def advice(name: str) -> str:
    """Where to get a data set and where to put it."""
    get = f"`dafp data get {name}` fetches it, or " if name in ("cifar10", "cifar100") else ""
    ways = " or ".join(_way(release) for release in RELEASES[name])
    return f"{get}download {ways} to the data directory (--root)"


def _way(release: Release) -> str:
    if release.archive:
        return f"{release.url} ({release.archive}, packed or not)"
    links = " and ".join(release.url + file for file in (*release.train, *release.test))
    return f"{links} into {release.directory}/"


def verify_files(release: Release, root: Path) -> None:
    """Compare the MD5 of every file of a release with the published one."""
    for key in release.files:
        verify(root / key, key)


def verify(path: Path, key: str) -> None:
    """Compare a file's MD5 with the one published for `key`."""
    found = md5_of(path)
    if found != MD5[key]:
        raise DataError(
            f"{path} has MD5 {found}, but the published file has {MD5[key]}: it is damaged, "
            "truncated or another file; delete it and download it again"
        )


def md5_of(path: Path) -> str:
    """MD5 of a file, read in pieces."""
    try:
        with open(path, "rb") as file:
            return hashlib.file_digest(file, _md5).hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error


def _md5() -> "hashlib._Hash":
    return hashlib.md5(usedforsecurity=False)  # identifies the published file; not for security


def _listed(files: Iterable[str]) -> str:
    names = list(files)
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
