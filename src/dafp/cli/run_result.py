"""Print the result of a run or of fine-tuning, and write its report."""

import json
from pathlib import Path

import typer

from ..report import formatting, write_report
from ..report.speed import rounding_line, speed_line_of
from ..training.run_directory import Paths, read_config
from ..training.run_records import RunResult
from .printing import is_first_process, printer
from .progress import summary_table
from .target_options import latency_sentence


def show_result(result: RunResult, out: Path, as_json: bool) -> None:
    """Write the report of a finished run; print its summary table, or its JSON."""
    if not is_first_process():
        return
    page = write_report(out)
    if as_json:
        typer.echo(json.dumps(result))
        return
    console = printer()
    console.print(summary_table(result["stages"]))
    for line in filter(None, _remarks(result, out)):
        console.print(line, highlight=False)
    if "collapsed" not in result:  # a collapsed network is not saved
        console.print(f"model {Paths(out).model}", highlight=False)
    console.print(f"report {page}", highlight=False)


def _remarks(result: RunResult, out: Path) -> list[str]:
    """What was removed, and how much faster that is."""
    remarks = [_verdict(result)] if "sparsity" in result else []
    if "latency" in result:
        return [*remarks, latency_sentence(result["latency"])]
    rows = result.get("layers", [])
    if rows and read_config(out).round_to == "auto":
        widths = [(row["before"] or 0, row["after"] or 0) for row in rows]
        remarks.append(rounding_line(widths))
    return [*remarks, speed_line_of(result["stages"])]


def _verdict(result: RunResult) -> str:
    if "collapsed" in result:
        return f"collapsed: {result['method']} left nothing of layer {result['collapsed']}"
    found = result["sparsity"]
    text = f"{found['removed']:.1%} of the prunable filters removed"
    if found["reached"] is not None:
        text = (
            f"sparsity {found['reached']:.3f} of {formatting.number(found['target'])} asked at "
            f"p={found['p']}, as a share of {found['unit']}; " + text
        )
    return text
