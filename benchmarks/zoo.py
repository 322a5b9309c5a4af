"""How many networks of torchvision and timm do dafp and Torch-Pruning prune exactly, and how fast?

    make zoo                                                # all that are not measured yet
    .venv-zoo/bin/python benchmarks/zoo.py --only resnet    # networks whose name contains this
    .venv-zoo/bin/python benchmarks/zoo.py --table          # only write docs/zoo.md

Each job runs in its own process with one thread, a time limit of 120 seconds and a warmed-up
library. One forward pass is measured as well, because verification needs it. Compare seconds only
within one run on one machine. Rows are in benchmarks/results/zoo.jsonl.
"""

import argparse
import contextlib
import gc
import multiprocessing
import os
import time
from typing import Any

import torch

import networks

SHIM = networks.shim_torchvision()

import timm  # noqa: E402, F401 - imported before forking, so that jobs need not
import torch_pruning  # noqa: E402, F401
import torchvision  # noqa: E402, F401

import peers  # noqa: E402
import zoo_table  # noqa: E402
from result_files import FOLDER, append_rows, read_rows  # noqa: E402

RESULTS = FOLDER / "zoo.jsonl"
RATIOS = {"dafp": (0.3, 0.5), "torch-pruning": (0.3, 0.5), "forward": (0.0,)}
SECONDS = 120


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--table", action="store_true", help="only write docs/zoo.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.table:
        run([name for name in networks.names() if options.only in name])
    zoo_table.write(read_rows(RESULTS), len(networks.names()))


def run(names: list[str]) -> None:
    """Run the jobs that are not in the results file yet, one at a time."""
    done = {(r["net"], r["tool"]) for r in read_rows(RESULTS)}
    jobs = [(name, tool) for name in names for tool in RATIOS if (name, tool) not in done]
    for number, (name, tool) in enumerate(jobs):
        records = one_job(name, tool)
        append_rows(RESULTS, *records)
        last = records[-1]
        print(f"[{number + 1}/{len(jobs)}] {name} {tool}: {last['outcome']} "
              f"{last.get('total_s', '')}", flush=True)  # fmt: skip


def one_job(name: str, tool: str) -> list[dict[str, Any]]:
    """Prune one network at every ratio, in a new process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(name, tool, theirs))
    process.start()
    theirs.close()
    records: list[dict[str, Any]] = []
    deadline = time.monotonic() + SECONDS
    outcome = "timeout"
    with contextlib.suppress(EOFError):
        while len(records) < len(RATIOS[tool]) and ours.poll(max(0, deadline - time.monotonic())):
            records.append(ours.recv())
            if records[-1]["outcome"] == "too large":
                break
        else:
            outcome = "timeout"
    if process.is_alive():
        process.kill()
    process.join()
    if process.exitcode not in (0, -9):
        outcome = f"crashed ({process.exitcode})"
    missing = (
        RATIOS[tool][len(records) :] if not records or records[-1]["outcome"] != "too large" else ()
    )
    return records + [{"net": name, "tool": tool, "ratio": r, "outcome": outcome} for r in missing]


def _work(name: str, tool: str, pipe: Any) -> None:
    model, example = networks.build(name)
    parameters = sum(p.numel() for p in model.parameters())
    base = {"net": name, "tool": tool, "params": parameters}
    if parameters > networks.MAX_PARAMETERS:
        pipe.send({**base, "ratio": None, "outcome": "too large"})
        return
    peers.warm_up(tool)
    gc.freeze()  # objects of the imports are not scanned again
    for ratio in RATIOS[tool]:
        try:
            result = peers.PRUNE[tool](model, example, ratio)
        except Exception as error:  # noqa: BLE001 - a failure is a result here
            first = str(error).splitlines()[0] if str(error) else ""
            result = {"outcome": "failed", "error": f"{type(error).__name__}: {first}"[:200]}
        pipe.send({**base, "ratio": ratio, **result})


if __name__ == "__main__":
    os.environ["OMP_NUM_THREADS"] = "1"
    main()
