"""Runs the code cells of a notebook without Jupyter: python tests/support/notebooks.py FILE

The script writes the outputs into the notebook. Lines that begin with `!` are commands.
"""

import contextlib
import io
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def read(file: Path) -> dict[str, Any]:
    return json.loads(file.read_text(encoding="utf-8"))


def sources(notebook: dict[str, Any], kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == kind]


def run_cells(cells: list[str], folder: Path) -> list[str]:
    """What each cell prints, run one after the other in `folder`."""
    names: dict[str, Any] = {"__name__": "__main__", "_run_command": _run_command}
    found = []
    sys.path.insert(0, str(folder))  # as Jupyter does
    with contextlib.chdir(folder):
        for cell in cells:
            lines = [
                f"_run_command({line[1:]!r})" if line.startswith("!") else line
                for line in cell.splitlines()
            ]
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile("\n".join(lines), "cell", "exec"), names)
            found.append(out.getvalue())
    return found


def _run_command(line: str) -> None:
    words = shlex.split(line)
    assert words[0] == "dafp", line
    done = subprocess.run(
        [sys.executable, "-m", *words], check=False, capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, (line, done.stderr[-2000:])
    sys.stdout.write(done.stdout)


def main() -> None:
    """Run the notebook in an empty directory, and write what its cells print into it."""
    file = Path(sys.argv[1])
    notebook = read(file)
    with tempfile.TemporaryDirectory() as folder:
        outputs = run_cells(sources(notebook, "code"), Path(folder))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, (cell, text) in enumerate(zip(code, outputs, strict=True), 1):
        cell["execution_count"] = number
        lines = [line.rstrip() + "\n" for line in text.splitlines()]
        stream = {"name": "stdout", "output_type": "stream", "text": lines}
        cell["outputs"] = [stream] if text else []
    file.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
