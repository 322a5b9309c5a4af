"""Hashes that identify a configuration, or one stage with all settings that it depends on."""

import dataclasses
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..methods import find
from ..storage.digest import file_digest
from ..training.config import INTRODUCED, Config

ASIDE = ("root", "threads", "tracker")  # where and how a run is computed, not what
_AFTERWARDS = (  # settings that sparse training does not depend on
    "move_p",
    "rule",
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
# settings that a shared sparse training does not depend on either
_CHOOSING = ("method", "target", "unit", "p", "criterion", "round_to", "min_channels")


def config_hash(config: Config) -> str:
    """16 hex digits, equal for configurations that must give the same result."""
    return values_hash(identity(config))


def stage_hash(config: Config, stage: str) -> str:
    """A hash of the stage "baseline" or "sparse": runs with the same hash train it alike."""
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
    """The configuration as JSON values, without the settings in ASIDE."""
    values = {k: v for k, v in dataclasses.asdict(config).items() if k not in ASIDE}
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found


def values_hash(values: dict[str, Any]) -> str:
    """`config_hash`, from a result of `identity` that this or another version of dafp stored.

    A setting that the stored values lack has the value of earlier runs (INTRODUCED). Settings with
    that value are left out of the hash, so that a new setting changes no hash.
    """
    return _hash(_without_introduced(values))


def identity(config: Config) -> dict[str, Any]:
    """The whole configuration as JSON values, as it identifies a result.

    Given weights are identified by their content, and a folder of images by its path. Otherwise
    `root`, `threads` and `tracker` are left out: they say where and how the result is computed, not
    what (another number of threads may change the rounding).
    """
    values = plain(config)
    if config.data == "folder":  # not a published data set: another root holds another one
        values["root"] = str(Path(config.root).absolute())
    file = Path(config.weights)
    if config.weights and file.is_file():
        found = file.stat()
        values["weights"] = _content(file.absolute(), found.st_size, found.st_mtime_ns)
    return values


def _without_introduced(values: dict[str, Any]) -> dict[str, Any]:
    """The values without the settings that have the value of earlier runs (INTRODUCED)."""
    left = {key: dict(v) if isinstance(v, dict) else v for key, v in values.items()}
    for name, before in INTRODUCED.items():
        table, dot, key = name.rpartition(".")
        owner = left.get(table, {}) if dot else left
        if key in owner and owner[key] == json.loads(json.dumps(before)):
            del owner[key]
    return left


@lru_cache
def _content(file: Path, size: int, changed: int) -> str:
    """The digest of a file, cached until its size or its modification time changes."""
    return file_digest(file)


def _hash(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
