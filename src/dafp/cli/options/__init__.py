"""The options and help texts of the commands. Nothing here imports torch, so help is quick.

Each function declares the options of one command and has no body: `dafp.cli.COMMANDS` names the
function that does the work, which takes the same arguments.
"""

from . import (
    bench,
    compare,
    data,
    evaluate,
    export,
    finetune,
    inspect,
    methods,
    predict,
    prune,
    report,
    reproduce,
    run,
    sensitivity,
    settings,
)

__all__ = [
    "bench",
    "compare",
    "data",
    "evaluate",
    "export",
    "finetune",
    "inspect",
    "methods",
    "predict",
    "prune",
    "report",
    "reproduce",
    "run",
    "sensitivity",
    "settings",
]
