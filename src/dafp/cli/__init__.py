"""The command line: a table of commands, and what happens when one is stopped or fails."""

import functools
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer
from rich.console import Console

from .. import __version__
from ..errors import DafpError
from . import options
from .printing import is_first_process
from .process import configure_process


@dataclass(frozen=True)
class Command:
    """One command of the table."""

    options: Callable[..., None]  # declares its options and help
    work: str  # module:function of this package, imported when the command runs
    resumes: bool = False  # after an interruption, the same command continues


COMMANDS = {
    "run": Command(options.run.run, "run:run", resumes=True),
    "finetune": Command(options.finetune.finetune, "finetune:finetune", resumes=True),
    "compare": Command(options.compare.compare, "compare:compare", resumes=True),
    "reproduce": Command(options.reproduce.reproduce, "reproduce:reproduce", resumes=True),
    "report": Command(options.report.report, "report:report"),
    "inspect": Command(options.inspect.inspect, "inspect:inspect"),
    "sensitivity": Command(options.sensitivity.sensitivity, "sensitivity:sensitivity"),
    "prune": Command(options.prune.prune, "prune:prune"),
    "export": Command(options.export.export, "export:export"),
    "bench": Command(options.bench.bench, "bench:bench"),
    "predict": Command(options.predict.predict, "predict:predict"),
    "eval": Command(options.evaluate.evaluate, "evaluate:evaluate"),
    "methods": Command(options.methods.methods, "methods:methods"),
    "settings": Command(options.settings.settings, "settings:settings"),
}
DATA_COMMANDS = {
    "get": Command(options.data.get, "data:get"),
    "check": Command(options.data.check, "data:check"),
    "list": Command(options.data.list_, "data:list_"),
}


def _lazy(command: Command) -> Callable[..., None]:
    """A function for typer that imports the work of a command only when it is called.

    Ctrl-C ends it with one line on stderr and exit code 130.
    """

    @functools.wraps(command.options)
    def call(**given: Any) -> None:
        module, _, function = command.work.partition(":")
        try:
            getattr(importlib.import_module(f".{module}", __name__), function)(**given)
        except KeyboardInterrupt:
            if is_first_process():
                more = "; the same command continues" if command.resumes else ""
                typer.echo(f"stopped{more}", err=True)
            raise typer.Exit(130) from None

    return call


app = typer.Typer(
    help="Make convolutional networks smaller: any CNN in, a smaller and verified CNN out.",
    epilog="First steps: dafp run; then dafp report, eval, export or predict with runs/default. "
    "Your own network and images: dafp run --model mynets:small --data folder:photos --size 64 "
    "--target macs=0.5 --out runs/mine. Without training: dafp prune MODEL --data folder:photos "
    "--target macs=0.5.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
)
data_app = typer.Typer(help="Data sets: list, download and check them.", no_args_is_help=True)
for _name, _command in COMMANDS.items():
    app.command(_name)(_lazy(_command))
for _name, _command in DATA_COMMANDS.items():
    data_app.command(_name)(_lazy(_command))
app.add_typer(data_app, name="data")


@app.callback(invoke_without_command=True)
def common_options(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    traceback: Annotated[
        bool, typer.Option("--traceback", help="Show the traceback of an error.")
    ] = False,
) -> None:
    """Every command prints results to stdout, progress to stderr; errors end with exit code 2."""
    if version:
        typer.echo(f"dafp {__version__}")
        raise typer.Exit


def main() -> None:
    """Run the command line; a DafpError is printed as one line, with exit code 2."""
    configure_process()
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
