"""Print the result of a run or of fine-tuning, and write its report."""

import json
from pathlib import Path

import typer

from ..report import formatting, write_report
from ..report.speed import speed_line_of
from ..training.run_directory import Paths
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
    if "sparsity" in result:
        console.print(_verdict(result), highlight=False)
    slow = speed_line_of(result["stages"])
    if slow and "latency" not in result:
        console.print(slow, highlight=False)
    if "latency" in result:
        console.print(latency_sentence(result["latency"]), highlight=False)
    if "collapsed" not in result:  # a collapsed network is not saved
        console.print(f"model {Paths(out).model}", highlight=False)
    console.print(f"report {page}", highlight=False)


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
