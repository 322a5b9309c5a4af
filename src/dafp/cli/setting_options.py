"""Settings of a run from the options of a command."""

import json

from ..choices import DISTILL


def all_settings(settings: list[str] | None, **named: object) -> list[str]:
    """The settings of --set, and those of options that are short for a setting, e.g. --model."""
    given = [*(settings or [])]
    return given + [f"{k}={json.dumps(value)}" for k, value in named.items() if value is not None]


def distill_share(distill: object, settings: list[str] | None) -> float | None:
    """The teacher's share in the loss with --distill, unless --set gives one."""
    is_set = any(setting.replace(" ", "").startswith("distill=") for setting in settings or [])
    return DISTILL if distill and not is_set else None
