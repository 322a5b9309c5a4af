"""Does a run that is killed and restarted end with the same bits as an uninterrupted run?

    python benchmarks/kill.py --kills 20 --seed 0

An uninterrupted run gives the reference result and the duration. Further runs are killed with
SIGKILL at random times within that duration (after Python's imports) and restarted with the same
command until they finish. Only times may differ (fields that end in _s). Exit code 0: bit-equal.
Writes benchmarks/results/kill.json.
"""

import argparse
import json
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dafp.files.checkpoint import read_checkpoint

SETTINGS = (
    "model=vgg11", "width=0.05", "images=256", "batch_size=16", "threads=1",
    "baseline.epochs=4", "sparse.epochs=8", "finetune.epochs=4",
)  # fmt: skip
COMMAND = "from dafp.cli import main; print('ready', flush=True); main()"
RESULT = Path(__file__).parent / "results" / "kill.json"


@dataclass(frozen=True)
class Reference:
    """The uninterrupted run."""

    outcome: dict[str, Any]
    seconds: float  # duration without imports


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--kills", type=int, default=20)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--set", action="append", default=[], help="change a setting of the run")
    options.add_argument("--result", type=Path, default=RESULT, help="file to write")
    given = options.parse_args()
    settings = [*SETTINGS, *given.set]
    with tempfile.TemporaryDirectory() as directory:
        reference = uninterrupted(Path(directory) / "whole", settings)
        print(f"uninterrupted run: {reference.seconds:.1f} s", flush=True)
        kills, wrong = [], []
        for out, place in killed_runs(Path(directory), settings, given, reference):
            if place is not None:
                kills.append(place)
                print(f"kill {len(kills)}: {place}", flush=True)
                continue
            differs = [k for k, v in outcome(out).items() if v != reference.outcome[k]]
            print(f"{out.name} finished: {differs or 'bit-equal'}", flush=True)
            wrong += differs
    verdict = {
        "kills": len(kills), "seed": given.seed, "where": kills, "settings": settings,
        "bit_equal": not wrong, "differs": sorted(set(wrong)),
        "machine": platform.processor() or platform.machine(),
    }  # fmt: skip
    given.result.parent.mkdir(exist_ok=True)
    given.result.write_text(json.dumps(verdict, indent=1) + "\n")
    print("WRONG: " + ", ".join(wrong) if wrong else f"bit-equal after {len(kills)} kills")
    return 1 if wrong else 0


def uninterrupted(out: Path, settings: list[str]) -> Reference:
    process = begin(out, settings)
    start = time.perf_counter()
    finish(process)
    return Reference(outcome(out), time.perf_counter() - start)


def killed_runs(
    directory: Path, settings: list[str], given: argparse.Namespace, reference: Reference
) -> Iterator[tuple[Path, str | None]]:
    """(directory, where it was killed) for every kill; (directory, None) for every finished run.

    A run is restarted in its directory until it finishes before its next kill.
    """
    chance, left, number = random.Random(given.seed), given.kills, 1
    seconds = reference.seconds
    while left:
        out = directory / f"run {number}"
        while left:
            fresh, process, start = not out.exists(), begin(out, settings), time.perf_counter()
            try:
                process.wait(chance.uniform(0, seconds))
                if fresh:  # the machine was busier before: use the shorter duration
                    seconds = min(seconds, time.perf_counter() - start)
                break
            except subprocess.TimeoutExpired:
                os.kill(process.pid, signal.SIGKILL)
                process.communicate()
                left -= 1
                yield out, where(out)
        finish(begin(out, settings))
        yield out, None
        number += 1


def begin(out: Path, settings: list[str]) -> "subprocess.Popen[bytes]":
    """Start the command in a new process; return when its imports are done."""
    command = [sys.executable, "-c", COMMAND, "run", "--quiet", "--out", str(out)]
    command += [part for setting in settings for part in ("--set", setting)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def finish(process: "subprocess.Popen[bytes]") -> None:
    _, errors = process.communicate()
    if process.returncode:
        sys.exit(f"the run failed: {errors.decode()}")


def where(out: Path) -> str:
    """The last state that the run has written."""
    if (out / "result.json").exists():
        return "after the result"
    for stage in ("finetune", "sparse", "baseline"):
        file = out / f"{stage}.checkpoint"
        if file.exists():
            return f"after epoch {read_checkpoint(file)['epoch']} of {stage}"
    return "before the first checkpoint"


def outcome(out: Path) -> dict[str, Any]:
    """Everything that must not depend on how often a run was interrupted."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return {
        "model.safetensors": (out / "model.safetensors").read_bytes(),
        "pruned.safetensors": (out / "pruned.safetensors").read_bytes(),
        "plan.json": (out / "plan.json").read_bytes(),
        "config.toml": (out / "config.toml").read_bytes(),
        "metrics.jsonl": [without_times(json.loads(line)) for line in lines],
        "result.json": without_times(json.loads((out / "result.json").read_text())),
        "files": sorted(p.name for p in out.iterdir()),
    }


def without_times(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if not k.endswith("_s")}
    return [without_times(v) for v in value] if isinstance(value, list) else value


if __name__ == "__main__":
    sys.exit(main())
