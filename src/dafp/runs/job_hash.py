"""Hashes that identify a configuration, or one of its stages with all that it depends on."""

import dataclasses
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..methods import find
from ..storage.digest import file_digest
from ..training.config import INTRODUCED, Config

ASIDE = ("root", "threads", "tracker")  # where and how it is computed, not what
_AFTERWARDS = (  # settings that sparse training does not depend on
    "compensate",
    "repair",
    "recalibrate",
    "steps",
    "after",
    "finetune",
    "distill",
    "temperature",
    "teacher",
)
_BASELINE = (
    "model",
    "width",
    "weights",
    "data",
    "root",
    "images",
    "val_share",
    "batch_size",
    "seed",
    "optimizer",
    "momentum",
    "weight_decay",
    "precision",
    "channels_last",
    "baseline",
)
_CHOOSING = ("method", "target", "unit", "p", "criterion")  # nor does a training that is shared


def config_hash(config: Config) -> str:
    """16 hex digits, equal for configurations that must give the same result."""
    return values_hash(identity(config))


def stage_hash(config: Config, stage: str) -> str:
    """The same for "baseline" or "sparse": runs of the same hash train the same network."""
    values = _without_introduced(identity(config))
    if stage == "baseline":
        return _hash({"stage": stage} | {k: v for k, v in values.items() if k in _BASELINE})
    method = find(config.method)
    unseen = list(_AFTERWARDS)
    if not method.from_baseline:
        unseen.append("baseline")
    if method.shared_training:
        unseen += _CHOOSING
    seen = {key: value for key, value in values.items() if key not in unseen}
    return _hash({"stage": stage, "training": method.shared_training or method.name} | seen)


def plain(config: Config) -> dict[str, Any]:
    """The configuration as JSON values: everything but where and how it is computed."""
    values = {k: v for k, v in dataclasses.asdict(config).items() if k not in ASIDE}
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found


def values_hash(values: dict[str, Any]) -> str:
    """`config_hash` of a configuration that was stored by `identity`, by this version or another.

    A setting that the stored values lack has the value that runs had before it was introduced.
    Values equal to that one are left out of the hash, so a new setting changes no hash.
    """
    return _hash(_without_introduced(values))


def identity(config: Config) -> dict[str, Any]:
    """The whole configuration as JSON values, as it identifies a result.

    Given weights are identified by their content, and a folder of images by its path. `root`,
    `threads` and `tracker` are left out otherwise: they say where and how it is computed, not what
    (another number of threads may change the rounding).
    """
    values = plain(config)
    if config.data == "folder":  # no published data set: another root is another one
        values["root"] = str(Path(config.root).absolute())
    file = Path(config.weights)
    if config.weights and file.is_file():
        found = file.stat()
        values["weights"] = _content(file.absolute(), found.st_size, found.st_mtime_ns)
    return values


def _without_introduced(values: dict[str, Any]) -> dict[str, Any]:
    """The values without settings that are as they were before they were introduced."""
    left = {key: dict(v) if isinstance(v, dict) else v for key, v in values.items()}
    for name, before in INTRODUCED.items():
        table, dot, key = name.rpartition(".")
        owner = left.get(table, {}) if dot else left
        if key in owner and owner[key] == json.loads(json.dumps(before)):
            del owner[key]
    return left


@lru_cache
def _content(file: Path, size: int, changed: int) -> str:
    """The digest, computed again when size or time of the file have changed."""
    return file_digest(file)


def _hash(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
