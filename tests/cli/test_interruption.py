"""Ctrl-C: one line that tells whether the same command continues, and exit code 130."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

WAITS = """
import signal, time

def net(num_classes=5):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored in the background
    print("waiting", flush=True)
    while True:
        time.sleep(0.1)
"""


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (("run", "--quiet", "--model", "waits:net"), "stopped; the same command continues\n"),
        (("inspect", "waits:net"), "stopped\n"),
    ],
    ids=lambda value: value[0],
)
@pytest.mark.slow(reason="a new process imports torch")
def test_an_interrupted_command_ends_with_one_line_and_exit_code_130(tmp_path, args, line):
    (tmp_path / "waits.py").write_text(WAITS)
    with subprocess.Popen(
        [Path(sys.executable).with_name("dafp"), *args],
        cwd=tmp_path,
        env=dict(os.environ),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate() == ("", line)
    assert process.returncode == 130
