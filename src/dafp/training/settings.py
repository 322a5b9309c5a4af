"""The settings of a run with their defaults and meanings, read from the configuration itself."""

import inspect
import re
from dataclasses import dataclass, fields
from typing import Any

from ..storage.toml import toml_text
from .config import Config, Schedule

_LINE = re.compile(r"^    (\w+): .*?(?:#\s*(.*))?$")


@dataclass(frozen=True)
class SettingInfo:
    """One setting."""

    name: str  # "finetune.lr"
    default: Any
    meaning: str


def all_run_settings() -> list[SettingInfo]:
    """Every setting of `dafp run`, in the order of the configuration."""
    default = Config()
    found = []
    for name, meaning in _meanings(Config).items():
        value = getattr(default, name)
        if not isinstance(value, Schedule):
            found.append(SettingInfo(name, value, meaning))
            continue
        for inner, text in _meanings(Schedule).items():
            found.append(SettingInfo(f"{name}.{inner}", getattr(value, inner), text))
    return found


def _meanings(kind: type) -> dict[str, str]:
    """Field -> the comment beside it in the source of the class."""
    known = {f.name for f in fields(kind)}
    found = {}
    for line in inspect.getsource(kind).splitlines():
        match = _LINE.match(line)
        if match and match[1] in known:
            found[match[1]] = (match[2] or "").strip()
    return found


def settings_as_markdown() -> list[str]:
    """The lines of a table of all settings."""
    lines = ["| setting | default | meaning |", "|---|---|---|"]
    for one in all_run_settings():
        default = toml_text({"x": one.default}).partition("=")[2].strip()
        lines.append(f"| `{one.name}` | `{default}` | {one.meaning.replace('|', chr(92) + '|')} |")
    return lines
