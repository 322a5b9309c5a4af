"""Compare models in several runtimes: latency, throughput, memory, ideal speed-up by MACs."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import BenchError
from ..export import to_onnx
from ..network.cost import cost
from ..network.named_tensors import tensors_of
from .peak_memory import peak_of
from .runtimes import Model, as_model, check_runtime, cost_in, runner, threads_of_torch
from .timing import Ratio, Run, Timing, check_setting, in_sessions, ratio


@dataclass(frozen=True)
class Row:
    """One model in one setting."""

    model: str
    runtime: str
    batch: int
    threads: int
    timing: Timing  # seconds per batch
    speedup: Ratio  # relative to the first model in the same setting
    ideal: float | None  # multiply-adds of the first model divided by those of this one
    memory: int | None  # bytes at the peak, weights included

    @property
    def throughput(self) -> float:
        """Images per second."""
        return self.batch / self.timing.median

    def _repr_html_(self) -> str:
        """A table of one row, as notebooks show it."""
        cells = {
            "model": escape(self.model),
            "runtime": self.runtime,
            "batch": f"{self.batch}",
            "threads": f"{self.threads}",
            "ms": f"{self.timing.median * 1e3:.3g}",
            "speed-up": f"{self.speedup.value:.2f}×",
            "ideal": "" if self.ideal is None else f"{self.ideal:.2f}×",
            "MB": "" if self.memory is None else f"{self.memory / 1e6:.1f}",
        }
        head, body = (
            "".join(f"<{tag}>{c}</{tag}>" for c in row)
            for tag, row in (("th", cells), ("td", cells.values()))
        )
        return f"<table><tr>{head}</tr><tr>{body}</tr></table>"

    @property
    def doubt(self) -> str:
        """Why the measurement is unreliable; empty if it is reliable."""
        return self.timing.doubt


def bench(
    models: Mapping[str, nn.Module | str | Path],
    example: Any,
    *,
    runtimes: Sequence[str] = ("eager",),
    batches: Sequence[int] = (1,),
    threads: Sequence[int] = (1,),
    seconds: float = 2.0,
) -> Iterator[Row]:
    """Measure the latency of several models, alternating between them, in several sessions.

    Args:
        models: name -> an nn.Module, or the path of an .onnx file
        example: an input of the models
        runtimes: "eager", "compile" or "onnx"
        batches: batch sizes
        threads: numbers of threads
        seconds: about how long each model is measured in each setting

    Returns:
        One row per model and setting, as soon as it is measured. Speed-ups are relative to the
        first model.

    Examples:
        >>> models = {"conv": nn.Conv2d(8, 8, 3), "half": nn.Conv2d(8, 4, 3)}
        >>> rows = list(dafp.latency.bench(models, torch.randn(1, 8, 16, 16), seconds=0.01))
        >>> [(row.model, row.ideal) for row in rows]  # `row.speedup` is measured
        [('conv', 1.0), ('half', 2.0)]
    """
    if not models:
        raise BenchError("there is no model to measure")
    check_setting(batches, threads, seconds)
    taken = {name: as_model(name, model) for name, model in models.items()}
    for runtime in runtimes:
        for model in taken.values():
            check_runtime(model, runtime)
    macs = {name: _macs(model, example) for name, model in taken.items()}
    with tempfile.TemporaryDirectory() as folder:
        for runtime in runtimes:
            ready = _exported(taken, example, Path(folder)) if runtime == "onnx" else taken
            for number in threads:
                for batch in batches:
                    with threads_of_torch(number):
                        yield from _setting(ready, example, runtime, batch, number, seconds, macs)


def _exported(models: Mapping[str, Model], example: Any, folder: Path) -> dict[str, Model]:
    """Every model as an ONNX file, exported once for all batch sizes."""
    ready: dict[str, Model] = {}
    for number, (name, model) in enumerate(models.items()):
        ready[name] = model
        if isinstance(model, nn.Module):
            ready[name] = to_onnx(model, example, folder / f"{number}.onnx", fold_bn=True).path
    return ready


def _setting(
    models: Mapping[str, Model],
    example: Any,
    runtime: str,
    batch: int,
    threads: int,
    seconds: float,
    macs: dict[str, int | None],
) -> Iterator[Row]:
    runs: dict[str, Run] = {}
    memory: dict[str, int | None] = {}
    for name, model in models.items():
        runs[name], memory[name] = _made(model, runtime, example, batch, threads)

    def again() -> dict[str, Run]:
        if runtime == "compile":  # takes minutes, so it is compiled once
            return runs
        return {
            n: runner(m, runtime, example, batch=batch, threads=threads) for n, m in models.items()
        }

    timings = in_sessions(again, seconds)
    first = next(iter(models))
    for name in models:
        most, mine = macs[first], macs[name]
        yield Row(
            name,
            runtime,
            batch,
            threads,
            timings[name],
            ratio(timings[first], timings[name]),
            most / mine if most and mine else None,
            memory[name],
        )


def _made(
    model: Model, runtime: str, example: Any, batch: int, threads: int
) -> tuple[Run, int | None]:
    """The function that runs the model once, and its peak memory including the weights."""
    made: list[Run] = []

    def make_and_run() -> None:
        made.append(runner(model, runtime, example, batch=batch, threads=threads))
        made[0]()

    if not isinstance(model, nn.Module):  # the session holds the weights and its activations
        peak = peak_of(make_and_run)
        return made[0], peak
    make_and_run()
    peak = peak_of(made[0])
    weights = sum(t.numel() * t.element_size() for t in tensors_of(model).values())
    return made[0], None if peak is None else peak + weights


def _macs(model: Model, example: Any) -> int | None:
    if isinstance(model, nn.Module):
        return cost(model, example).macs
    known = cost_in(model)
    return None if known is None else known.macs
