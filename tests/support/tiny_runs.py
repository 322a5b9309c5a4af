"""A run of seconds, a progress that interrupts it, and what must not depend on interruptions."""

import json
from pathlib import Path

import pytest

from dafp.runs import pipeline
from dafp.runs.pipeline import run
from dafp.training.config import Config, Schedule
from dafp.training.loop import NoProgress
from dafp.training.run_directory import Paths
from dafp.training.run_records import RunResult
from support.training import tiny_data

CONFIG = Config(
    model="support.training:users_net", width=1.0, batch_size=16, threads=1,
    baseline=Schedule(2, 0.05), sparse=Schedule(4, 0.05, ()), finetune=Schedule(2, 0.05),
)  # fmt: skip


class StopError(Exception):
    """A run is interrupted."""


class Unplugged(NoProgress):
    """Stops a run at its n-th event: a stage begins, an epoch was written, pruning begins."""

    def __init__(self, event: int = -1) -> None:
        self.left, self.seen = event, 0

    def _event(self) -> None:
        self.seen += 1
        if self.seen == self.left:
            raise StopError

    def stage(self, name, epochs, steps, done=0, later=0) -> None:
        self._event()

    def epoch(self, row) -> None:
        self._event()

    def say(self, text) -> None:
        self._event()


def use_tiny_data(patch: pytest.MonkeyPatch) -> None:
    """Runs load the images of `support.training`, whatever their configuration names."""
    patch.setattr(pipeline, "load_data", lambda *args, **kwargs: tiny_data())


def uninterrupted(config: Config, out: Path) -> tuple[RunResult, int]:
    """The result of a run on tiny data, and how many events it has."""
    progress = Unplugged()
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_data(patch)
        result = run(config, out, progress)
    return result, progress.seen


def timeless(value):
    """Without the fields that hold times."""
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k != "speeds" and not k.endswith("_s")}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def outcome(out: Path):
    """Everything of a run that must not depend on how often it was interrupted."""
    paths = Paths(out)
    return {
        "model": paths.model.read_bytes(),
        "pruned": paths.pruned.read_bytes(),
        "plan": paths.plan.read_bytes(),
        "config": paths.config.read_bytes(),
        "metrics": [timeless(json.loads(line)) for line in paths.metrics.read_text().splitlines()],
        "result": timeless(json.loads(paths.result.read_text())),
    }
