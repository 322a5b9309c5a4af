"""Quantise an ONNX file to 8 bits by ONNX Runtime's quantiser, checked against the float file."""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..choices import CALIBRATIONS
from ..errors import ExportError, FileError
from ..extras import need
from ..storage.atomic_write import write_atomically
from .onnx_file import check_destination, info_in_onnx
from .output_check import session_of
from .torch_program import quiet

FLOOR = 0.98
_ROWS = 32  # images per run of the calibration: the histograms keep the activations of one run
_METHODS = dict(zip(CALIBRATIONS, ("MinMax", "Percentile", "Entropy"), strict=True))


@dataclass(frozen=True)
class Quantised:
    """What `to_int8` wrote, and how it compares with the float file."""

    path: Path
    size: int  # bytes
    float_size: int
    images: int  # compared
    same_class: float  # share of the images that both files give the same class
    difference: float  # of the outputs, root mean square, relative to those of the float file
    accuracy: float | None  # None without labels
    float_accuracy: float | None
    nodes: dict[str, int]  # operator -> number of nodes

    @property
    def kept(self) -> float:
        """What the floor is compared with: the share of the accuracy, or of equal classes."""
        if self.accuracy is None or self.float_accuracy is None:
            return self.same_class
        return self.accuracy / self.float_accuracy if self.float_accuracy else 1.0


def to_int8(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    images: Iterable[Any],
    test: Iterable[Any],
    *,
    floor: float = FLOOR,
    calibration: str = "minmax",
    per_channel: bool = True,
    reduce_range: bool = False,
) -> Quantised:
    """Quantise weights and activations of an ONNX file statically, to 8 bits.

    ONNX Runtime's own quantiser (`quantize_static`, QDQ format) does the work. The new file is run
    beside the float one on the test images; it is written only if it keeps enough. What the float
    file says of its model (input, normalisation, class names) stays in the file.

    Args:
        source: the float file, from `dafp.export.to_onnx`; best with `fold_bn=True`
        path: the file to write
        images: batches of inputs by which the ranges of activations are chosen, such as a few
            hundred training images; of (input, label) pairs, the labels are not used
        test: batches of inputs, or of (input, label) pairs, to compare both files on
        floor: the least accuracy, as a share of the accuracy of the float file; without labels,
            the least share of test images that must get the same class
        calibration: how ranges are chosen: "minmax", "percentile" or "entropy"
        per_channel: a scale for each output channel of a weight, instead of one for the weight
        reduce_range: weights of 7 bits, for x86 processors without VNNI

    Returns:
        Size, accuracy and agreement, of both files.

    Raises:
        ExportError: The file keeps less than the floor, or the model cannot be quantised.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))
        >>> batches = [torch.randn(32, 3, 8, 8) for _ in range(4)]
        >>> done = dafp.export.to_onnx(model, batches[0][:1], "net.onnx", fold_bn=True)
        >>> int8 = dafp.export.to_int8("net.onnx", "net.int8.onnx", batches[:3], batches[3:])
        >>> int8.size < int8.float_size
        True
    """
    check_options(floor, calibration)
    source, path = Path(source), Path(path)
    check_destination(path)
    feed = _feeder(source)
    with TemporaryDirectory() as folder:
        rough = Path(folder) / "int8.onnx"
        entries = _calibration_rows(images, feed)
        _quantise(source, rough, entries, calibration, per_channel, reduce_range)
        found = _compare(source, rough, test, feed)
        _check_kept(found, floor, calibration)
        data, nodes = _finished(source, rough, {"calibration": calibration, **found})
    write_atomically(path, data)
    return Quantised(path, len(data), source.stat().st_size, nodes=nodes, **found)


def check_options(floor: float, calibration: str) -> None:
    """Raise ExportError for a floor or a calibration that there is not."""
    if not isinstance(floor, (int, float)) or not 0 <= floor <= 1:
        raise ExportError(
            f"floor={floor!r} is not a share between 0 and 1: 0.98 lets int8 lose 2 % of the "
            "float file's accuracy, 0 accepts any loss"
        )
    if calibration not in CALIBRATIONS:
        raise ExportError(
            f"calibration={calibration!r} is not known; choose one of {', '.join(CALIBRATIONS)}"
        )


Feed = Callable[[Any], tuple[dict[str, Any], Any]]


def _feeder(source: Path) -> Feed:
    """A function from a batch to the inputs of a session, and its labels or None, as arrays."""
    if not source.is_file():
        raise FileError(f"there is no file {source}")
    onnx = need("onnx", "onnx", "the quantisation")
    session = session_of(str(source))
    inputs = session.get_inputs()
    if [one.type for one in inputs] != ["tensor(float)"]:
        raise ExportError(
            f"{source} takes {len(inputs)} inputs ({', '.join(one.type for one in inputs)}); only "
            "files with one input of floats can be quantised here"
        )
    if any(n.op_type == "QuantizeLinear" for n in onnx.load(str(source)).graph.node):
        raise ExportError(f"{source} is quantised already; give the float file")
    name, sizes = inputs[0].name, inputs[0].shape[1:]

    def feed(batch: Any) -> tuple[dict[str, Any], Any]:
        x, y = batch if isinstance(batch, (tuple, list)) else (batch, None)
        given = list(x.shape[1:])
        pairs = zip(sizes, given, strict=False)
        wrong = any(isinstance(size, int) and size != mine for size, mine in pairs)
        if len(given) != len(sizes) or wrong:
            raise ExportError(
                f"{source} takes inputs of {sizes}, the images are {given}; give images of that "
                "size"
            )
        return {name: x.detach().cpu().contiguous().numpy()}, None if y is None else y.cpu().numpy()

    return feed


def _calibration_rows(images: Iterable[Any], feed: Feed) -> list[dict[str, Any]]:
    """The calibration images, a few in each entry."""
    entries = []
    for batch in images:
        given, _ = feed(batch)
        for name, x in given.items():
            entries += [{name: x[n : n + _ROWS]} for n in range(0, len(x), _ROWS)]
    if not entries:
        raise ExportError("there are no images to choose the ranges of activations by")
    return entries


def _quantise(
    source: Path,
    path: Path,
    entries: list[dict[str, Any]],
    calibration: str,
    per_channel: bool,
    reduce_range: bool,
) -> None:
    quantization = need("onnxruntime.quantization", "onnx", "the quantisation")
    with quiet():  # the quantiser prints its progress to stdout
        try:
            quantization.quantize_static(
                str(source),
                str(path),
                _reader(quantization, entries),
                per_channel=per_channel,
                reduce_range=reduce_range,
                activation_type=quantization.QuantType.QUInt8,
                weight_type=quantization.QuantType.QInt8,
                calibrate_method=quantization.CalibrationMethod[_METHODS[calibration]],
                # one entry at a time: all activations of all images would not fit into memory
                extra_options={"CalibStridedMinMax": 1},
            )
        except Exception as error:  # onnxruntime has error types of its own
            first = (str(error).splitlines() or [""])[0]
            raise ExportError(f"ONNX Runtime cannot quantise {source}: {first}") from error


def _reader(quantization: Any, entries: list[dict[str, Any]]) -> Any:
    """The calibration images as ONNX Runtime's quantiser reads them."""

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.rest: Iterator[dict[str, Any]] = iter(entries)

        def __len__(self) -> int:
            return len(entries)

        def set_range(self, start_index: int, end_index: int) -> None:
            self.rest = iter(entries[start_index:end_index])

        def get_next(self) -> dict[str, Any] | None:
            return next(self.rest, None)

    return Reader()


def _compare(source: Path, rough: Path, test: Iterable[Any], feed: Feed) -> dict[str, Any]:
    """Run both files on the test images."""
    sessions = [session_of(str(file)) for file in (source, rough)]
    images = same = labelled = right = float_right = 0
    error = scale = 0.0
    for batch in test:
        given, labels = feed(batch)
        whole, small = (s.run(None, given)[0] for s in sessions)
        if whole.ndim != 2:
            raise ExportError(
                f"{source} gives outputs of shape {list(whole.shape)}; int8 files are checked by "
                "their classes, so outputs must be images × classes"
            )
        classes, ours = whole.argmax(1), small.argmax(1)
        images += len(whole)
        same += int((classes == ours).sum())
        error += float(((whole - small) ** 2).sum(dtype="float64"))
        scale += float((whole**2).sum(dtype="float64"))
        if labels is not None:
            if int(labels.max()) >= whole.shape[1]:
                raise ExportError(
                    f"{source} knows {whole.shape[1]} classes, the test images have label "
                    f"{int(labels.max())}; give the data set that it was trained on"
                )
            labelled += len(labels)
            right += int((ours == labels).sum())
            float_right += int((classes == labels).sum())
    if not images:
        raise ExportError("there are no test images to compare the int8 file with the float one on")
    return {
        "images": images,
        "same_class": same / images,
        "difference": round((error / scale) ** 0.5, 6) if scale else 0.0,
        "accuracy": right / labelled if labelled else None,
        "float_accuracy": float_right / labelled if labelled else None,
    }


def _check_kept(found: dict[str, Any], floor: float, calibration: str) -> None:
    """Raise ExportError if the int8 file keeps less than the floor."""
    kept = Quantised(Path(), 0, 0, nodes={}, **found).kept
    if kept >= floor and found["difference"] < float("inf"):
        return
    if found["accuracy"] is None:
        what = f"int8 gives {kept:.2%} of {found['images']:,} test images the class of float"
    else:
        what = (
            f"int8 classifies {found['accuracy']:.2%} of {found['images']:,} test images correctly "
            f"instead of {found['float_accuracy']:.2%}, {kept:.3f} of it"
        )
    others = " or ".join(repr(name) for name in CALIBRATIONS if name != calibration)
    raise ExportError(
        f"{what}; the floor is {floor:g}, so no file was written. Calibrate on more images, try "
        f"calibration {others}, or accept a lower floor"
    )


def _finished(source: Path, rough: Path, done: dict[str, Any]) -> tuple[bytes, dict[str, int]]:
    """The bytes of the file, with what was done added to its history."""
    onnx = need("onnx", "onnx", "the quantisation")
    model = onnx.load(str(rough))
    nodes: dict[str, int] = {}
    for node in model.graph.node:
        nodes[node.op_type] = nodes.get(node.op_type, 0) + 1
    about = {entry.key: entry.value for entry in model.metadata_props}
    info_in_onnx(about, source)  # raises if the entry is damaged
    known = json.loads(about.get("dafp", "{}"))
    known["history"] = [*known.get("history", []), {"command": "export", "int8": done}]
    del model.metadata_props[:]
    onnx.helper.set_model_props(model, {"dafp": json.dumps(known, sort_keys=True)})
    model.producer_name = "dafp"
    data: bytes = model.SerializeToString(deterministic=True)
    return data, nodes
