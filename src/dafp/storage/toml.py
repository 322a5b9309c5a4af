"""Write TOML that `tomllib` reads back as equal values, one setting per line."""

import json
from collections.abc import Mapping
from typing import Any


def toml_text(values: Mapping[str, Any]) -> str:
    """Plain values first, then a table for every dict. Lists stay on one line."""
    plain, tables = [], []
    for key, value in values.items():
        if isinstance(value, dict):
            tables.append(f"\n[{key}]")
            tables += [f"{inner} = {_literal(item)}" for inner, item in value.items()]
        else:
            plain.append(f"{key} = {_literal(value)}")
    return "\n".join(plain + tables) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, str):
        # not ASCII: TOML forbids surrogates in \u escapes. It requires DEL to be escaped
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    return repr(value)
