"""Settings of a run from the options of a command."""

import dataclasses
import json
from pathlib import Path

from ..choices import DISTILL
from ..errors import DataError, TrainingError
from ..network.model_info import ModelInfo
from ..runs.loading import info_in
from ..selection.target_value import parse_target
from ..training.config import Config, changed, make_config, read_settings
from ..training.run_directory import read_config


def all_settings(settings: list[str] | None, **named: object) -> list[str]:
    """The settings of --set, and those of options that are short for a setting, e.g. --model."""
    given = [*(settings or [])]
    return given + [f"{k}={json.dumps(value)}" for k, value in named.items() if value is not None]


def data_settings(data: str | None, root: Path | None) -> dict[str, object]:
    """The settings data and root from --data NAME or --data folder:DIR, and --root."""
    name, colon, folder = (data or "").partition(":")
    if not colon:
        return {"data": data, "root": None if root is None else str(root)}
    if root is not None or not folder:
        raise DataError(f"--data {data} names its own directory: folder:DIR, without --root")
    return {"data": name, "root": folder}


def target_settings(target: str | None, settings: list[str] | None) -> dict[str, object]:
    """The settings unit, and target or left, from --target."""
    if target is None:
        return {}
    parsed = parse_target(target)
    unit = parsed.unit if "=" in target else None
    amount = {"target": parsed.share} if parsed.left is None else {"left": parsed.left}
    return {"unit": unit, **amount}


def rounded(config: Config, target: str | None) -> Config:
    """The configuration for --target macs=…: widths are rounded, unless settings choose them.

    Fewer multiply-adds are to be faster, and runtimes compute blocks of channels.
    """
    chosen = config.round_to or config.rule != "own"
    if target is None or parse_target(target, config.unit).unit != "macs" or chosen:
        return config
    return dataclasses.replace(config, round_to="auto")


def distill_share(distill: object, settings: list[str] | None) -> float | None:
    """The teacher's share in the loss with --distill, unless --set gives one."""
    is_set = any(setting.replace(" ", "").startswith("distill=") for setting in settings or [])
    return DISTILL if distill and not is_set else None


def config_for_saved(
    path: Path,
    preset: str | None,
    config: Path | None,
    settings: list[str],
    data: str | None = None,
    root: Path | None = None,
) -> Config:
    """The configuration for a saved file or a run: what these know is not asked for again."""
    given = all_settings(settings, **data_settings(data, root))
    if path.is_dir():
        if preset or config:
            raise TrainingError(
                f"{path} is a run with its own configuration; --set changes some of it"
            )
        return changed(read_config(path), read_settings(given), "--set")
    info = info_in(path)
    asked = {key.partition("=")[0].strip() for key in given}
    if not (preset or config or "data" in asked) and info.data:
        if info.data in ("folder", "imagenet"):
            raise DataError(
                f"{path} was trained on images of a directory; name it: --data folder:DIR"
            )
        given = [*given, f"data={json.dumps(info.data)}"]
    return make_config(preset or "digits", config, [*_of_images(info, asked), *given])


def _of_images(info: ModelInfo, asked: set[str]) -> list[str]:
    """How own images become inputs, as the file says it, unless the user says otherwise."""
    known: dict[str, object] = {}
    if info.data == "folder" and len(info.input) == 3:
        known = {
            "size": info.input[-1],
            "resize": info.resize,
            "mean": list(info.mean),
            "std": list(info.std),
        }
    return [f"{key}={json.dumps(v)}" for key, v in known.items() if key not in asked]
