"""The READMEs and docs/ as tests see them: blocks of code, commands, inline code, links."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

ROOT = Path(__file__).parents[2]
READMES = [ROOT / "README.md", ROOT / "src/dafp/tracing/README.md"]  # pages beside the site
SHELL = ("console", "sh", "bash", "shell")
# what a command may begin with; a line of a shell block that begins with anything else is an error
PROGRAMS = ("accelerate", "dafp", "make", "pip", "pytest", "python", "ray", "torchrun")
_COMMAND = re.compile(
    rf"(?:\$ )?((?:[A-Z_]+=\S+ )*(?:\.venv-zoo/bin/)?(?:{'|'.join(PROGRAMS)}) .+|make)"
)
_FENCE = re.compile(r"^( *)(```+|~~~+) *([\w+-]*).*$")


@dataclass(frozen=True)
class Block:
    """One block of code of a page."""

    language: str  # "" where none is given, "indented" without a fence
    line: int  # of its first line of code, from 1
    text: str


def pages() -> list[Path]:
    return [*READMES, *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(text: str) -> Iterator[Block]:
    """Fenced and indented blocks, in order. Indented: four spaces, after an empty line."""
    lines = text.splitlines()
    at = 0
    while at < len(lines):
        fence = _FENCE.match(lines[at])
        if fence:
            end = next(
                (i for i in range(at + 1, len(lines)) if lines[i].strip() == fence[2]), len(lines)
            )
            code = [line.removeprefix(fence[1]) for line in lines[at + 1 : end]]
            yield Block(fence[3], at + 2, "\n".join(code))
            at = end + 1
        elif lines[at].startswith("    ") and (at == 0 or not lines[at - 1].strip()):
            end = at
            while end < len(lines) and lines[end].startswith("    "):
                end += 1
            yield Block("indented", at + 1, "\n".join(line[4:] for line in lines[at:end]))
            at = end
        else:
            at += 1


def commands(text: str) -> list[str]:
    """What a reader would type, without comments, from blocks that are not in another language."""
    found = []
    for block in blocks(text):
        if block.language not in ("", "indented", "text", *SHELL):
            continue
        for number, line in enumerate(block.text.replace("\\\n", "").splitlines(), block.line):
            command = _COMMAND.fullmatch(re.sub(r"(^|\s+)#.*", "", line).strip())
            if command:
                found.append(command[1].strip())
            elif block.language in SHELL and re.sub(r"(^|\s+)#.*", "", line).strip():
                raise ValueError(f"line {number} is no command that the tests know: {line!r}")
    return found


def python_blocks(text: str) -> list[Block]:
    return [block for block in blocks(text) if block.language in ("python", "py")]


def inline_commands(text: str) -> list[str]:
    """`dafp …`, `make …` and `python FILE …` in running text and tables."""
    for block in blocks(text):
        if block.language != "indented":
            text = text.replace(block.text, "")
    found = (" ".join(code.split()) for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", text))
    return [code for code in found if _COMMAND.fullmatch(code)]


def links(text: str) -> list[str]:
    """Targets of links and pictures that are no addresses, without their anchors."""
    found = re.findall(r"\]\(([^)\s]+)\)", text)
    return [link.split("#")[0] for link in found if "://" not in link and link.split("#")[0]]


class Page(HTMLParser):
    """What a page of the built site has and asks for."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []  # where a reader may go
        self.fetched: list[str] = []  # what the browser fetches by itself
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {key: value or "" for key, value in attrs}
        if "id" in values:
            self.ids.add(values["id"])
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag == "link" and "href" in values and values.get("rel") not in ("prev", "next"):
            self.fetched.append(values["href"])
        elif "src" in values:
            self.fetched.append(values["src"])
