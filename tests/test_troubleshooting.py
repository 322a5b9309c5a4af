"""The index of messages: every quoted message is one that the code can print."""

import ast
import re
from functools import cache

import pytest

from support.pages import ROOT

PAGE = (ROOT / "docs/troubleshooting.md").read_text(encoding="utf-8")
ROWS = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", PAGE, re.MULTILINE)


@cache
def texts() -> tuple[str, ...]:
    """Every text in the source, `…` in place of what is filled in (also by logging)."""
    found = []
    for path in sorted((ROOT / "src/dafp").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    "".join(v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(re.sub(r"%[ds]|%\.\d+f", "…", node.value))
    return tuple(" ".join(text.split()) for text in found)


def test_the_index_has_a_cause_and_a_remedy_for_every_message():
    assert len(ROWS) == sum(line.startswith("| `") for line in PAGE.splitlines())
    assert len(ROWS) > 35
    assert all(len(cause) > 10 and len(remedy) > 10 for _, cause, remedy in ROWS)


@pytest.mark.parametrize("message", [row[0] for row in ROWS])
def test_a_quoted_message_is_one_of_the_code(message):
    pattern = re.compile(".{0,200}?".join(re.escape(part) for part in message.split("…")))
    assert any(pattern.search(text) for text in texts()), f"nothing in src/dafp says {message!r}"
