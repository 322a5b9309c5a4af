"""What a command sets for its process: threads that wait sleep, freed memory is kept."""

import os
import platform
import resource
import subprocess
import sys

import pytest

GLIBC = sys.platform.startswith("linux") and platform.libc_ver()[0] == "glibc"
FAULTS = """
import resource, sys
from dafp.cli.process import keep_freed_memory
print(keep_freed_memory())
def touch():
    blocks = [b"x" * (size * 2**20) for size in (8, 8, 8, 40)]  # freed together
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def _faults(**variables: str) -> tuple[str, int]:
    """Whether memory is kept, and the page faults of blocks that are freed and allocated again."""
    given = {k: v for k, v in os.environ.items() if not k.startswith(("MALLOC_", "LD_PRELOAD"))}
    found = subprocess.run(
        [sys.executable, "-c", FAULTS], env=given | variables, check=True, capture_output=True,
        text=True,
    )  # fmt: skip
    kept, faults = found.stdout.split()
    return kept, int(faults)


@pytest.mark.skipif(not GLIBC, reason="only glibc is told to keep memory")
def test_freed_blocks_are_used_again_without_page_faults():
    pages = 20 * 64 * 2**20 // resource.getpagesize()
    kept, faults = _faults()
    assert kept == "True"
    assert faults < pages / 10


def test_memory_settings_of_the_environment_win():
    assert _faults(MALLOC_TRIM_THRESHOLD_="1000000")[0] == "False"


@pytest.mark.parametrize("given", [None, "ACTIVE"])
def test_waiting_threads_sleep_unless_the_environment_says_otherwise(given):
    code = "from dafp.cli import process; process.configure_process(); "
    code += "print(process.os.environ['OMP_WAIT_POLICY'])"
    variables = {k: v for k, v in os.environ.items() if k != "OMP_WAIT_POLICY"}
    variables |= {} if given is None else {"OMP_WAIT_POLICY": given}
    found = subprocess.run(
        [sys.executable, "-c", code], env=variables, check=True, capture_output=True, text=True
    )
    assert found.stdout.strip() == (given or "PASSIVE")
