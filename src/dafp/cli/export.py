"""The work of `dafp export`: write a model as an ONNX file, in float or quantised to 8 bits."""

import json
from pathlib import Path

import typer
from rich.console import Console

from ..errors import ExportError
from ..export import to_onnx
from .export_int8 import export_int8, int8_images
from .model_argument import network


def export(
    *,
    model: str,
    weights: Path | None,
    out: Path | None,
    fold_bn: bool,
    selections: str,
    int8: bool,
    data: str | None,
    root: Path | None,
    skip_unreadable: bool,
    images: int | None,
    mean: str | None,
    std: str | None,
    floor: float | None,
    calibration: str | None,
    reduce_range: bool,
    input_shape: str | None,
    classes: int | None,
    width: float,
    builder: str | None,
    trust: bool,
    as_json: bool,
) -> None:
    """Write the ONNX file and print what was folded and how far its outputs differ."""
    of_int8 = {
        "data": data,
        "root": root,
        "skip-unreadable": skip_unreadable or None,
        "images": images,
        "mean": mean,
        "std": std,
        "floor": floor,
        "calibration": calibration,
        "reduce-range": reduce_range or None,
    }
    given = [f"--{name}" for name, value in of_int8.items() if value is not None]
    if given and not int8:
        raise ExportError(
            f"{' and '.join(given)} concern{'s' if len(given) == 1 else ''} the quantised file: "
            "give --int8 as well"
        )
    net, example = network(
        model, weights, input_shape, classes, width, builder=builder, trust=trust
    )
    if int8:
        known = int8_images(
            net,
            model,
            data,
            root=root or Path("data"),
            mean=mean,
            std=std,
            shape=input_shape,
            skip=skip_unreadable,
        )
        export_int8(
            net,
            example,
            out or Path("model.int8.onnx"),
            known,
            selections=selections,
            images=images,
            floor=floor,
            calibration=calibration,
            reduce_range=reduce_range,
            as_json=as_json,
        )
        return
    out = out or Path("model.onnx")
    done = to_onnx(net, example, out, fold_bn=fold_bn, selections=selections)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "file": str(out),
                    "bytes": done.size,
                    "gaps": done.gaps,
                    "nodes": done.nodes,
                    "folded_norms": done.folded_norms,
                    "folded_selections": done.folded_selections,
                    "notes": list(done.notes),
                    **vars(done.cost),
                }
            )
        )
        return
    console = Console(soft_wrap=True)
    for note in done.notes:
        console.print(f"note: {note}", highlight=False)
    worst = max(done.gaps.values())
    console.print(
        f"{done.folded_norms} BN and {done.folded_selections} feature selections folded; "
        f"{done.nodes.get('BatchNormalization', 0)} BN and {done.nodes.get('Gather', 0)} gathers "
        "left",
        highlight=False,
    )
    console.print(
        f"differs from PyTorch by at most {worst:.1e} of the largest output, on "
        f"{', '.join(done.gaps)}; written to {out} ({done.size:,} bytes)",
        highlight=False,
    )
