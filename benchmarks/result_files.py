"""Result files of the benchmarks: one JSON object per line, appended as soon as it is measured."""

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "results"


def read_rows(path: Path) -> list[dict[str, Any]]:
    """All rows of a file; none if it does not exist yet."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def append_rows(path: Path, *rows: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
