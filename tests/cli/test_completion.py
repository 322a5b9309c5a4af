"""Shell completion, by the script that `dafp --install-completion` installs for bash."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETE = """
source <(_DAFP_COMPLETE=source_bash dafp)
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
_dafp_completion dafp
echo "${COMPREPLY[@]}"
"""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dafp re", "reproduce report"),
        ("dafp data ch", "check"),
        ("dafp prune --c", "--criterion --compensate --classes"),
    ],
)
def test_bash_completes_commands_and_options(line, words):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", COMPLETE, "bash", *line.split()],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == (words, "")
