"""A new virtual environment with dafp, installed from the checkout as a user installs it.

Only dafp is installed anew. The distributions that it requires, and theirs, are linked from the
environment of the tests: installing PyTorch again takes minutes. Nothing else can be imported, so
a requirement that pyproject.toml lacks is an error, and so is a file that the wheel lacks.
"""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

from packaging.requirements import Requirement

from support.vision import VISION, vision_paths

ROOT = Path(__file__).parents[2]


class FreshEnvironment:
    """A virtual environment in `home`, and a directory `work` in which commands run."""

    def __init__(self, home: Path, extras: tuple[str, ...], vision: bool = False) -> None:
        self.bin, self.work = home / "venv/bin", home / "work"
        self.work.mkdir()
        _checked([sys.executable, "-m", "venv", home / "venv"], home)
        wanted = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
        pip = [self.bin / "python", "-m", "pip", "--disable-pip-version-check"]
        _checked([*pip, "install", "-q", "--no-deps", wanted], home)
        [own] = (home / "venv").rglob("site-packages")
        names = [*_requirements(own, extras), *(["timm", "torchvision"] if vision else [])]
        places = [sysconfig.get_path("purelib"), *([str(VISION)] if vision else [])]
        for name in _closure(names, places):
            for found in importlib.metadata.distributions(name=name, path=places):
                _link(found, own)
        shim = vision_paths()[:1] if vision else []
        self.environment = {
            key: value for key, value in os.environ.items() if not key.startswith("PYTHON")
        } | {
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "error::DeprecationWarning:dafp",
            "PYTHONPATH": os.pathsep.join(shim),
        }

    def run(self, *args: object) -> str:
        """What `dafp ARGS` prints to stdout; it must succeed."""
        return _checked([self.bin / "dafp", *args], self.work, self.environment)


def _checked(command: list[object], folder: Path, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=folder, env=environment, check=False,
        capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    line = " ".join(str(part) for part in command)
    assert done.returncode == 0, f"{line}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def _requirements(site: Path, extras: tuple[str, ...]) -> list[str]:
    [dafp] = importlib.metadata.distributions(name="dafp", path=[str(site)])
    return _needed(dafp, extras)


def _needed(found: importlib.metadata.Distribution, extras: tuple[str, ...] = ("",)) -> list[str]:
    wanted = [Requirement(line) for line in found.requires or []]
    return [
        one.name
        for one in wanted
        if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in ("", *extras))
    ]


def _closure(names: list[str], places: list[str]) -> set[str]:
    """The distributions, and all that they require, as far as they are installed."""
    known: set[str] = set()
    while names:
        name = names.pop()
        if name in known:
            continue
        known.add(name)
        for found in importlib.metadata.distributions(name=name, path=places):
            names += _needed(found)
    return known


def _link(found: importlib.metadata.Distribution, site: Path) -> None:
    """Link what a distribution has installed; a folder that several share is linked by entry."""
    for file in {Path(str(f)) for f in found.files or [] if ".." not in Path(str(f)).parts}:
        source, target = Path(str(found.locate_file(str(file)))), site / file
        top = site / file.parts[0]
        if top.is_symlink() or not source.exists():
            continue
        shared = file.parts[0] in SHARED
        if shared:
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                target.symlink_to(source)
        elif not top.exists():
            top.symlink_to(Path(str(found.locate_file(file.parts[0]))))


SHARED = {"nvidia", "google", "__pycache__"}  # namespaces of several distributions
