"""The work of `dafp bench`: measure models on this machine."""

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor

from ..errors import BenchError
from ..latency import Row, chart
from ..latency import bench as measure
from ..latency.runtimes import Model, example_of
from ..storage.atomic_write import write_atomically
from .model_argument import example_from, is_saved, network, refuse_beside
from .printing import printer, table_of


def bench(
    *,
    models: list[str],
    runtime: list[str] | None,
    batch: list[int] | None,
    threads: list[int] | None,
    seconds: float,
    plot: Path | None,
    input_shape: str | None,
    classes: int | None,
    width: float,
    builder: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Measure models, print one line of progress for each, then the tables or the JSON."""
    nets, example = _models(models, input_shape, classes, width, builder, trust)
    only_files = all(isinstance(net, Path) for net in nets.values())
    rows: list[Row] = []
    progress = Console(stderr=True)
    for row in measure(
        nets,
        example,
        runtimes=runtime or ["onnx" if only_files else "eager"],
        batches=batch or [1],
        threads=threads or [1],
        seconds=seconds,
    ):
        rows.append(row)
        progress.print(f"{row.runtime}, batch {row.batch}: {row.model} done", highlight=False)
    if plot is not None:
        write_atomically(plot, chart(rows).encode())
    if as_json:
        typer.echo(json.dumps([_json(row) for row in rows]))
        return
    _print(rows)


def _models(
    names: list[str],
    shape: str | None,
    classes: int | None,
    width: float,
    builder: str | None,
    trust: bool,
) -> tuple[dict[str, Model], Tensor]:
    """Each model by its name, and an example input for all of them."""
    if all(name.endswith(".onnx") or is_saved(name) for name in names):
        refuse_beside(names[0], classes=classes, width=None if width == 1 else width)
    nets: dict[str, Model] = {}
    examples = []
    for name in names:
        if name in nets:
            raise BenchError(f"{name!r} is given twice; each model is measured once")
        if name.endswith(".onnx"):
            path = Path(name)
            if not path.is_file():
                raise BenchError(f"there is no file {name}")
            nets[name] = path
            examples.append(example_of(path, None if shape is None else example_from(shape)))
        else:
            nets[name], example = (
                network(name, None, shape, None, 1.0, builder=builder, trust=trust)
                if is_saved(name)
                else network(name, None, shape, classes, width)
            )
            examples.append(example)
    shapes = [tuple(example.shape[1:]) for example in examples]
    if len(set(shapes)) > 1:
        raise BenchError(f"the models take inputs of different shapes: {shapes}; give --input")
    return nets, examples[0]


def _json(row: Row) -> dict[str, Any]:
    low, high = row.timing.quartiles
    return {
        "model": row.model,
        "runtime": row.runtime,
        "batch": row.batch,
        "threads": row.threads,
        "median_s": row.timing.median,
        "quartiles_s": [low, high],
        "samples": len(row.timing.samples),
        "throughput": row.throughput,
        "speedup": row.speedup.value,
        "speedup_95": [row.speedup.low, row.speedup.high],
        "ideal": row.ideal,
        "peak_bytes": row.memory,
        "doubt": row.doubt,
    }


def _print(rows: list[Row]) -> None:
    """Print one table per setting."""
    console = printer()
    for setting in dict.fromkeys((row.runtime, row.batch, row.threads) for row in rows):
        these = [row for row in rows if (row.runtime, row.batch, row.threads) == setting]
        console.print(_table(these))
        for row in these:
            if row.doubt:
                console.print(
                    f"too busy to measure: {row.model}: {row.doubt}",
                    highlight=False,
                )


def _table(rows: list[Row]) -> Table:
    first = rows[0]
    title = f"{first.runtime}, batch {first.batch}, threads {first.threads}"
    table = table_of(
        title, ["model"], ["ms", "quartiles", "rows/s", "speed-up", "95 %", "ideal", "peak MB"]
    )
    for row in rows:
        low, high = row.timing.quartiles
        table.add_row(
            row.model,
            f"{row.timing.median * 1e3:.3g}",
            f"{low * 1e3:.3g}–{high * 1e3:.3g}",
            f"{row.throughput:,.4g}",
            f"{row.speedup.value:.2f}×",
            f"{row.speedup.low:.2f}–{row.speedup.high:.2f}",
            f"{row.ideal:.2f}×" if row.ideal else "–",
            f"{row.memory / 1e6:.1f}" if row.memory is not None else "–",
            style="dim" if row.doubt else None,
        )
    return table
