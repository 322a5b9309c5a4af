"""Names for work: the hash of a configuration, and of all that one stage of it depends on."""

import dataclasses
import hashlib
import json
from typing import Any

from .config import Config
from .methods import find

ASIDE = ("root", "threads", "tracker")  # where and how it is computed, not what
_AFTERWARDS = (  # nothing of these is known while training
    "compensate", "repair", "recalibrate", "steps", "after", "finetune", "distill", "temperature",
    "teacher",
)  # fmt: skip
_BASELINE = (
    "model", "width", "weights", "data", "images", "val_share", "batch_size", "seed", "optimizer",
    "momentum", "weight_decay", "precision", "channels_last", "baseline",
)  # fmt: skip
_CHOOSING = ("method", "target", "unit", "p", "criterion")  # what a shared training does not see


def config_hash(config: Config) -> str:
    """16 hex digits that are equal where the result must be."""
    return _hash(plain(config))


def stage_hash(config: Config, stage: str) -> str:
    """The same for "baseline" or "sparse": runs of the same hash train the same network."""
    values = plain(config)
    if stage == "baseline":
        return _hash({"stage": stage} | {key: values[key] for key in _BASELINE})
    method = find(config.method)
    unseen = list(_AFTERWARDS)
    if not method.from_baseline:
        unseen.append("baseline")
    if method.training:
        unseen += _CHOOSING
    seen = {key: value for key, value in values.items() if key not in unseen}
    return _hash({"stage": stage, "training": method.training or method.name} | seen)


def plain(config: Config) -> dict[str, Any]:
    """What is hashed, as JSON values: everything but where and how it is computed."""
    values = {k: v for k, v in dataclasses.asdict(config).items() if k not in ASIDE}
    found: dict[str, Any] = json.loads(json.dumps(values))
    return found


def _hash(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
