"""Latency of each layer at any width: measured once on a grid, cached in the user's directory."""

import bisect
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch

from ..errors import FileError
from ..storage.atomic_write import write_atomically
from .layer_calls import LayerCall, run_of
from .runtimes import threads_of_torch
from .timing import LEAST_SAMPLE, sample

_log = logging.getLogger(__name__)

GRID = (0.125, 0.25, 0.5, 0.75, 1.0)  # shares of the layer's width
SAMPLES = 7  # the fastest one counts: disturbances only add time
STEPS = (16, 8, 4, 2)  # multiples to which widths may be rounded
FREE = 1.01  # rounding up is free if the time grows by no more than this factor
STAIRS = 16  # widths that are measured one by one, because latency grows in steps
_CPUINFO = Path("/proc/cpuinfo")
_KIND = ("cpu family", "model", "stepping", "CPU implementer", "CPU part")


@dataclass
class Table:
    """Seconds of layers at any width, for one runtime, batch size and number of threads."""

    runtime: str
    batch: int
    threads: int
    known: dict[LayerCall, dict[tuple[int, int], float]] = field(default_factory=dict, repr=False)
    measured: int = 0  # points that were not in the cache

    def seconds(self, layer: LayerCall, inputs: int, outputs: int) -> float:
        """Seconds of the layer with these widths, interpolated linearly between grid points."""
        if not layer.groups:
            return _between(outputs, _grid(layer, layer.outputs), lambda o: self.point(layer, o, o))
        across = _grid(layer, layer.inputs)
        along = _grid(layer, layer.outputs)
        return _between(
            inputs, across, lambda i: _between(outputs, along, lambda o: self.point(layer, i, o))
        )

    def point(self, layer: LayerCall, inputs: int, outputs: int) -> float:
        """Seconds of the layer with exactly these widths: from the cache, or measured now."""
        plain = replace(layer, weight="")
        if plain not in self.known:
            self.known[plain] = _read(self._file(plain))
        points = self.known[plain]
        there = plain.at(inputs, outputs)
        key = there.inputs, there.outputs
        if key not in points:
            points[key] = self._measure(there)
            self.measured += 1
        return points[key]

    def round_to(self, layers: list[LayerCall]) -> int:
        """The largest step to which widths of the slowest layers can be rounded up at no cost."""
        calls = Counter(replace(layer, weight="") for layer in layers)
        wide = [layer for layer in calls if layer.outputs >= 2 * STAIRS]
        slowest = sorted(
            wide, key=lambda a: calls[a] * self.point(a, a.inputs, a.outputs), reverse=True
        )[:3]
        stairs = [self._stairs(layer) for layer in slowest]
        for step in STEPS:
            exact = sum(sum(times) for times in stairs)
            rounded = sum(
                times[-(-(n + 1) // step) * step - 1] for times in stairs for n in range(STAIRS)
            )
            if stairs and rounded <= FREE * exact:
                return step
        return 1

    def save(self) -> None:
        """Write the measurements to the user's cache; log a warning if that fails."""
        try:
            cache_folder().mkdir(parents=True, exist_ok=True)
            for layer, points in self.known.items():
                rows = [[*widths, seconds] for widths, seconds in sorted(points.items())]
                data = json.dumps({"layer": asdict(layer), "points": rows}).encode()
                write_atomically(self._file(layer), data)
        except (OSError, FileError) as error:
            _log.warning(
                "the times of layers were not kept in %s (%s): they will be measured again; "
                "XDG_CACHE_HOME names another place",
                cache_folder(),
                error,
            )

    def _stairs(self, layer: LayerCall) -> list[float]:
        """Seconds at 16 widths in a row, the last of which is a multiple of 16."""
        end = max(STAIRS, layer.outputs * 3 // 4 // STAIRS * STAIRS)
        return [self.point(layer, layer.inputs, end - STAIRS + 1 + n) for n in range(STAIRS)]

    def _measure(self, layer: LayerCall) -> float:
        run = run_of(layer, self.runtime, self.batch, self.threads)
        with threads_of_torch(self.threads):
            once = min(sample(run, 1)[0] for _ in range(3))
            repeats = max(1, round(LEAST_SAMPLE / once))
            return min(sample(run, repeats)[0] for _ in range(SAMPLES)) / repeats

    def _file(self, layer: LayerCall) -> Path:
        """The cache file, named by a hash of everything that the measurements depend on."""
        facts = [asdict(layer), self.runtime, self.batch, self.threads, *machine()]
        if self.runtime == "onnx":
            facts.append(_version("onnxruntime"))
        name = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:24]
        return cache_folder() / f"{name}.json"


def cache_folder() -> Path:
    """`dafp/latency` in the user's cache directory."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "dafp" / "latency"


def machine() -> tuple[str, str]:
    """Processor (name, family, model, stepping, number of cores) and version of torch."""
    first = _CPUINFO.read_text().partition("\n\n")[0] if _CPUINFO.is_file() else ""
    parted = (line.partition(":") for line in first.splitlines())
    facts = {key.strip(): value.strip() for key, _, value in parted}
    name = facts.get("model name") or platform.processor() or platform.machine()
    kind = [facts[key] for key in _KIND if key in facts]
    return f"{' '.join([name, *kind])} × {os.cpu_count()}", torch.__version__


def _version(package: str) -> str:
    return importlib.metadata.version(package)


def _read(file: Path) -> dict[tuple[int, int], float]:
    """Points of a cache file; none if it cannot be read."""
    try:
        rows = json.loads(file.read_text())["points"]
        return {(int(i), int(o)): float(seconds) for i, o, seconds in rows}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _grid(layer: LayerCall, width: int) -> list[int]:
    step = layer.groups or 1
    return sorted({max(1, round(share * width / step)) * step for share in GRID})


def _between(at: int, grid: list[int], value: Callable[[int], float]) -> float:
    """Interpolate linearly between two grid points; constant below the first one."""
    if at <= grid[0] or len(grid) == 1:
        return value(grid[0])  # even a layer of one channel costs a call
    right = min(bisect.bisect_left(grid, at), len(grid) - 1)
    a, b = grid[right - 1], grid[right]
    share = (at - a) / (b - a)
    return (1 - share) * value(a) + share * value(b)
