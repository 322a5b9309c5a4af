"""How many networks do dafp and Torch-Pruning prune exactly, and how fast?

    make zoo                                                # all that are not measured yet
    .venv-zoo/bin/python benchmarks/zoo.py --only resnet    # networks whose name contains this
    .venv-zoo/bin/python benchmarks/zoo.py --family video   # networks of a family
    .venv-zoo/bin/python benchmarks/zoo.py --table          # only write docs/zoo.md

Each job runs in its own process with one thread, at most 120 seconds of processor time (60 for
other networks than classifiers) and a warmed-up library. One forward pass is measured as well,
because verification needs it. Compare seconds only within one run on one machine. Rows are in
benchmarks/results/zoo.jsonl.
"""

import argparse
import contextlib
import gc
import multiprocessing
import os
import resource
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ |= {"YOLO_OFFLINE": "1", "YOLO_AUTOINSTALL": "0", "HF_HUB_OFFLINE": "1"}

import torch

import networks

SHIM = networks.shim_torchvision()

import timm  # noqa: E402, F401 - imported before forking, so that jobs need not
import torch_pruning  # noqa: E402, F401
import torchvision  # noqa: E402, F401

import dafp  # noqa: E402
import families  # noqa: E402
import peers  # noqa: E402
import zoo_table  # noqa: E402
from dafp.storage.revision import code_revision  # noqa: E402
from result_files import FOLDER, append_rows, read_rows  # noqa: E402

RESULTS = FOLDER / "zoo.jsonl"
CLASSIFIERS = {"dafp": (0.3, 0.5), "torch-pruning": (0.3, 0.5), "forward": (0.0,)}
OTHERS = {"dafp": (0.5,), "dafp keep": (0.3,), "torch-pruning": (0.5,), "forward": (0.0,)}
SECONDS = 120  # of processor time, for all ratios and the comparisons
SECONDS_OF_OTHERS = 60  # on networks that are not classifiers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="networks whose name contains this")
    parser.add_argument("--family", default="", help="networks of this family")
    parser.add_argument("--table", action="store_true", help="only write docs/zoo.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    names = [*networks.names(), *families.BUILDERS]
    if not options.table:
        chosen = [n for n in names if options.only in n]
        run([n for n in chosen if options.family in ("", families.family_of(n))])
    zoo_table.write(read_rows(RESULTS), {n: families.family_of(n) for n in names})


def run(names: list[str]) -> None:
    """Run the jobs that are not in the results file yet, one at a time."""
    rows = read_rows(RESULTS)
    done = {(r["net"], r["tool"]) for r in rows}
    outputs = {r["net"]: r["outputs"] for r in rows if "outputs" in r}
    jobs = {n: [tool for tool in _ratios(n) if (n, tool) not in done] for n in names}
    jobs = {n: tools for n, tools in jobs.items() if tools}
    for number, (name, tools) in enumerate(jobs.items()):
        subject = families.subject(name)
        for tool in tools:
            if name in families.BUILDERS:
                subject = replace(subject, outputs=tuple(outputs.get(name, ())))
            records = one_job(name, subject, tool)
            outputs |= {r["net"]: r["outputs"] for r in records if "outputs" in r}
            append_rows(RESULTS, *records)
            last = records[-1]
            print(f"[{number + 1}/{len(jobs)}] {name} {tool}: {last['outcome']} "
                  f"{last.get('exact', '')} {last.get('total_s', '')} {last.get('error', '')}",
                  flush=True)  # fmt: skip


def one_job(name: str, subject: families.Subject, tool: str) -> list[dict[str, Any]]:
    """Prune one network at every ratio, in a new process."""
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(name, subject, tool, theirs))
    process.start()
    theirs.close()
    records: list[dict[str, Any]] = []
    with contextlib.suppress(EOFError):
        while True:  # until the process has closed its end
            records.append(ours.recv())
    process.join()
    if records and records[-1]["outcome"] == "too large":
        return records
    late = process.exitcode == -signal.SIGXCPU
    outcome = "timeout" if late else f"crashed ({process.exitcode})"
    missing = _ratios(name)[tool][len(records) :]
    return records + [{**_base(name, tool), "ratio": r, "outcome": outcome} for r in missing]


def _base(name: str, tool: str) -> dict[str, Any]:
    revision = code_revision(Path(dafp.__file__).parent, "unknown")
    return {"net": name, "family": families.family_of(name), "tool": tool, "revision": revision}


def _ratios(name: str) -> dict[str, tuple[float, ...]]:
    return OTHERS if name in families.BUILDERS else CLASSIFIERS


def _work(name: str, subject: families.Subject, tool: str, pipe: Any) -> None:
    used = int(time.process_time())
    limit = used + (SECONDS_OF_OTHERS if name in families.BUILDERS else SECONDS)
    resource.setrlimit(resource.RLIMIT_CPU, (limit, limit + 5))
    parameters = sum(p.numel() for p in subject.model.parameters())
    base = {**_base(name, tool), "params": parameters}
    if parameters > networks.MAX_PARAMETERS:
        pipe.send({**base, "ratio": None, "outcome": "too large"})
        return
    peers.warm_up(tool)
    gc.freeze()  # objects of the imports are not scanned again
    for ratio in _ratios(name)[tool]:
        try:
            result = peers.PRUNE[tool](subject, ratio)
        except Exception as error:  # noqa: BLE001 - a failure is a result here
            first = str(error).splitlines()[0] if str(error) else ""
            result = {"outcome": "failed", "error": f"{type(error).__name__}: {first}"[:200]}
        pipe.send({**base, "ratio": ratio, **result})


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
