"""The command line: each command is a function of its own module, registered here."""

import sys
from typing import Annotated

import typer
from rich.console import Console

from .. import __version__
from ..errors import DafpError
from .bench import bench
from .compare import compare
from .data import app as data_app
from .export import export
from .models import inspect, prune
from .report import report
from .reproduce import reproduce
from .run import evaluate, finetune, run
from .sensitivity import sensitivity

app = typer.Typer(
    help="Make convolutional networks smaller: any CNN in, a smaller and verified CNN out.",
    no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False,
)  # fmt: skip


@app.callback(invoke_without_command=True)
def options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show where errors arise.")
    ] = False,
) -> None:
    """Every command prints results to stdout, progress to stderr; errors end with exit code 2."""
    if version:
        typer.echo(f"dafp {__version__}")
        raise typer.Exit


for _command in (
    run, finetune, compare, reproduce, report, inspect, sensitivity, prune, export, bench,
):  # fmt: skip
    app.command()(_command)
app.command("eval")(evaluate)
app.add_typer(data_app, name="data")


def main() -> None:
    """Run the command line; an error of ours is one line and exit code 2."""
    try:
        app(standalone_mode=True)
    except DafpError as error:
        if "--traceback" in sys.argv:
            raise
        text = " ".join(str(error).split())
        Console(stderr=True, soft_wrap=True).print(
            f"error: {text}", style="red", highlight=False, markup=False
        )
        sys.exit(2)
