"""Names for work: the hash of a configuration, and of all that one stage of it depends on."""

import dataclasses
import hashlib
import json
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..training.config import Config
from ..methods import find

ASIDE = ("root", "threads", "tracker")  # where and how it is computed, not what
_AFTERWARDS = (  # nothing of these is known while training
    "compensate", "repair", "recalibrate", "steps", "after", "finetune", "distill", "temperature",
    "teacher",
)  # fmt: skip
_BASELINE = (
    "model", "width", "weights", "data", "root", "images", "val_share", "batch_size", "seed",
    "optimizer", "momentum", "weight_decay", "precision", "channels_last", "baseline",
)  # fmt: skip
_CHOOSING = ("method", "target", "unit", "p", "criterion")  # what a shared training does not see


def config_hash(config: Config) -> str:
    """16 hex digits that are equal where the result must be."""
    return _hash(_known(config))


def stage_hash(config: Config, stage: str) -> str:
    """The same for "baseline" or "sparse": runs of the same hash train the same network."""
    values = _known(config)
    if stage == "baseline":
        return _hash({"stage": stage} | {k: v for k, v in values.items() if k in _BASELINE})
    method = find(config.method)
    unseen = list(_AFTERWARDS)
    if not method.from_baseline:
        unseen.append("baseline")
    if method.training:
        unseen += _CHOOSING
    seen = {key: value for key, value in values.items() if key not in unseen}
    return _hash({"stage": stage, "training": method.training or method.name} | seen)


def plain(config: Config) -> dict[str, Any]:
    """The configuration as JSON values: everything but where and how it is computed."""
    values = {k: v for k, v in dataclasses.asdict(config).items() if k not in ASIDE}
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found


def _known(config: Config) -> dict[str, Any]:
    """What is hashed: of given weights the content, of one's own images where they lie."""
    values = plain(config)
    if config.data == "folder":  # no published data set: another root is another one
        values["root"] = str(Path(config.root).absolute())
    file = Path(config.weights)
    if config.weights and file.is_file():
        found = file.stat()
        values["weights"] = _content(file.absolute(), found.st_size, found.st_mtime_ns)
    return values


@lru_cache
def _content(file: Path, size: int, changed: int) -> str:
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _hash(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
