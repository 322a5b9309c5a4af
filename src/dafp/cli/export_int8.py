"""The option `--int8` of `dafp export`: a quantised file, compared with the float one."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import typer
from torch import Tensor, nn

from ..choices import CALIBRATIONS, NAMED_SETS
from ..data import DataSet
from ..errors import DataError
from ..export import Quantised, to_int8, to_onnx
from ..export.int8_file import FLOOR, check_options
from ..latency import Row, bench
from ..network.model_info import info_of
from ..runs.pipeline import open_data
from ..training.run_directory import read_config
from .calibration_images import calibration_images, calibration_set
from .printing import printer, table_of
from .progress import step_progress

IMAGES = 300
SECONDS = 2.0  # of the measurement, for each file
_BATCH = 100


def export_int8(
    net: nn.Module,
    example: Tensor,
    out: Path,
    known: DataSet,
    *,
    selections: str,
    images: int | None,
    floor: float | None,
    calibration: str | None,
    reduce_range: bool,
    as_json: bool,
) -> None:
    """Write the quantised file, measure it beside the float one, and print both."""
    floor, calibration = FLOOR if floor is None else floor, calibration or CALIBRATIONS[0]
    check_options(floor, calibration)
    chosen = calibration_images(known, IMAGES if images is None else images)
    with TemporaryDirectory() as folder, step_progress(quiet=as_json) as progress:
        whole = Path(folder) / "float.onnx"
        progress("float file", 0, 1)
        to_onnx(net, example, whole, fold_bn=True, selections=selections)
        progress("8 bits", 0, 1)
        done = to_int8(
            whole,
            out,
            chosen,
            known.batches("test", batch_size=_BATCH),
            floor=floor,
            calibration=calibration,
            reduce_range=reduce_range,
        )
        progress("latency", 0, 1)
        both = {"float": whole, "int8": out}
        rows = list(bench(both, example, runtimes=["onnx"], seconds=SECONDS))
    if as_json:
        typer.echo(json.dumps(_json(done, rows)))
    else:
        _print(done, rows, known.name)


def int8_images(
    net: nn.Module,
    model: str,
    data: str | None,
    *,
    root: Path,
    mean: str | None,
    std: str | None,
    shape: str | None,
    skip: bool = False,
) -> DataSet:
    """The images of --data; without it, those that a run or a saved file names."""
    info, path = info_of(net), Path(model)
    if data is None and path.is_dir():
        return open_data(read_config(path))
    named = info.data in NAMED_SETS and info.data != "imagenet"  # that one is a directory too
    if data is None and not named:  # a file may say anything: "folder:/somewhere" is not read
        raise DataError(
            f"--int8 needs images to calibrate on and to compare with, which {model} does not "
            "name: give --data NAME or --data folder:DIR"
        )
    return calibration_set(data or info.data, root, mean, std, info, shape, skip)


def _json(done: Quantised, rows: list[Row]) -> dict[str, Any]:
    whole, small = rows
    return {
        "file": str(done.path),
        "bytes": done.size,
        "float_bytes": done.float_size,
        "images": done.images,
        "accuracy": done.accuracy,
        "float_accuracy": done.float_accuracy,
        "same_class": done.same_class,
        "difference": done.difference,
        "nodes": done.nodes,
        "latency_s": small.timing.median,
        "float_latency_s": whole.timing.median,
        "speedup": small.speedup.value,
        "speedup_95": [small.speedup.low, small.speedup.high],
        "doubt": small.doubt or whole.doubt,
    }


def _print(done: Quantised, rows: list[Row], data: str) -> None:
    whole, small = rows
    table = table_of(
        f"{done.images:,} test images of {data}; ONNX Runtime, batch 1, one thread",
        [""],
        ["float", "int8"],
    )
    assert done.accuracy is not None
    assert done.float_accuracy is not None
    table.add_row("accuracy", f"{done.float_accuracy:.2%}", f"{done.accuracy:.2%}")
    table.add_row("bytes", f"{done.float_size:,}", f"{done.size:,}")
    table.add_row("ms", f"{whole.timing.median * 1e3:.3g}", f"{small.timing.median * 1e3:.3g}")
    doubt = small.doubt or whole.doubt
    gain = small.speedup
    table.add_row(
        "speed-up",
        "",
        "too busy to tell" if doubt else f"{gain.value:.2f}× ({gain.low:.2f}–{gain.high:.2f})",
    )
    console = printer()
    console.print(table)
    if doubt:
        console.print(f"too busy to measure: {doubt}", highlight=False)
    console.print(
        f"the same class for {done.same_class:.2%} of the images, outputs differ by "
        f"{done.difference:.1%} (root mean square); written to {done.path}",
        highlight=False,
    )
