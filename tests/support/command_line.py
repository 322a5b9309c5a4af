"""The command line in this process, as a user calls it."""

import sys

import pytest

from dafp import cli


def error_line(args: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that fails prints: one line on stderr, nothing else; exit code 2."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["dafp", *args])
        with pytest.raises(SystemExit) as stop:
            cli.main()
    out, err = capsys.readouterr()
    assert (stop.value.code, out) == (2, "")
    assert len(err.splitlines()) == 1
    return err
