"""Time a network and its pruned versions by turns."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

from ..errors import BenchError
from ..export import to_onnx
from .runtimes import Model, runner, threads_of_torch
from .search import LatencyPlan, until_clear
from .timing import Timing, by_turns, check_setting

RUNTIMES = ("eager", "onnx")

Pair = tuple[Timing, Timing]  # of the original and of the pruned network


@dataclass(frozen=True)
class LatencySetting:
    """How latency is measured; BenchError if it cannot be."""

    runtime: str = "eager"
    batch: int = 1
    threads: int = 1
    seconds: float = 1.0  # of one measurement, for each of two networks

    def __post_init__(self) -> None:
        if self.runtime not in RUNTIMES:
            raise BenchError(
                f"runtime={self.runtime!r} has no latency target; choose 'eager' or 'onnx'"
            )
        check_setting([self.batch], [self.threads], self.seconds)


@contextmanager
def pair_timer(
    model: nn.Module, example: Any, target: float, setting: LatencySetting
) -> Iterator[Callable[[nn.Module], Pair]]:
    """Context manager: a function of a pruned network that times it and the original by turns.

    It measures until it is clear whether the share `target` of the time is removed.
    """
    with TemporaryDirectory() as folder:
        base = _ready(model, example, setting, Path(folder) / "base.onnx")

        def time(small: nn.Module) -> Pair:
            pruned = _ready(small, example, setting, Path(folder) / "pruned.onnx")

            def once() -> Pair:
                timings = _timed({"base": base, "pruned": pruned}, example, setting)
                return timings["base"], timings["pruned"]

            return until_clear(once, 1 - target)

        yield time


def whole_latency(model: nn.Module, example: Any, setting: LatencySetting) -> Timing:
    """The latency of one network."""
    return _timed({"": model}, example, setting)[""]


def values_of(done: LatencyPlan, setting: LatencySetting) -> dict[str, Any]:
    """The measurement of a plan as JSON values."""
    speedup = done.chosen.speedup
    return {
        "runtime": setting.runtime,
        "batch": setting.batch,
        "threads": setting.threads,
        "removed": done.removed,
        "before_s": done.chosen.before.median,
        "after_s": done.chosen.after.median,
        "speedup": speedup.value,
        "speedup_95": [speedup.low, speedup.high],
        "round_to": done.round_to,
        "attempts": len(done.attempts),
        "points_measured": done.measured,
        "doubt": done.chosen.after.doubt,
    }


def _timed(models: dict[str, Model], example: Any, setting: LatencySetting) -> dict[str, Timing]:
    with threads_of_torch(setting.threads):
        runs = {
            name: runner(
                model, setting.runtime, example, batch=setting.batch, threads=setting.threads
            )
            for name, model in models.items()
        }
        return by_turns(runs, setting.seconds)


def _ready(model: nn.Module, example: Any, setting: LatencySetting, path: Path) -> Model:
    if setting.runtime != "onnx":
        return model
    return to_onnx(model, example, path, fold_bn=True).path
