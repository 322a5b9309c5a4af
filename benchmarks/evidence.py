"""All of CIFAR-10 at equal multiply-adds and equal epochs: which method, score, rule and λ is best?

    python benchmarks/evidence.py --root data --out DIR            # resumable, about 25 hours
    python benchmarks/evidence.py --dry-run                        # what is done, what is to do
    python benchmarks/evidence.py --root data --out DIR --only vgg-50 --minutes 120
    python benchmarks/evidence.py --table                          # only write docs/results.md
    python benchmarks/evidence.py --smoke --out DIR                # every arm on a few digits

The plan (`evidence_plan.py`) was committed before the first run. 45,000 images to train, 5,000 to
validate, 10,000 to test; the accuracy after the last epoch is reported; one thread. Each finished
run is one row of benchmarks/results/evidence.jsonl with its configuration and the revision of the
code. DIR, best outside the checkout, holds run directories and the sparse trainings that arms
share; without it an interrupted run starts again, but no finished one is repeated.
"""

import argparse
import dataclasses
import time
from collections.abc import Callable
from pathlib import Path

from dafp.cli.progress import TerminalProgress
from dafp.runs.job_hash import config_hash
from dafp.sweeps import Sweep, SweepPaths, sweep
from dafp.sweeps.results_store import read_records
from dafp.training.config import Config, Schedule
from evidence_page import write_page
from evidence_plan import PLAN, Job, Part, jobs

HERE = Path(__file__).parent.parent
RESULTS = HERE / "benchmarks" / "results" / "evidence.jsonl"


def smoke(config: Config) -> Config:
    """The same run on a few digits, with narrow networks and one epoch per stage."""
    schedules = {
        name: dataclasses.replace(schedule, epochs=min(1, schedule.epochs))
        for name in ("baseline", "sparse", "finetune")
        if isinstance(schedule := getattr(config, name), Schedule)
    }
    return dataclasses.replace(
        config, data="digits", images=96, batch_size=16, width=config.width / 4, **schedules
    )


def finished(paths: SweepPaths, shrink: Callable[[Config], Config]) -> Sweep:
    """The rows of the plan so far. The second pass finds runs whose `step` was chosen."""
    done = Sweep()
    for _ in range(2):
        known = [j.config for part in PLAN for j in jobs(part, done, shrink) if j.config]
        done = Sweep(read_records(paths, known))
    return done


def left(part: Part, done: Sweep, shrink: Callable[[Config], Config]) -> list[Job]:
    """The runs of a part that are not finished; those without a configuration wait for others."""
    return [
        job for job in jobs(part, done, shrink) if job.config is None or done.of(job.config) is None
    ]


def run(
    part: Part,
    paths: SweepPaths,
    root: Path,
    shrink: Callable[[Config], Config],
    deadline: float,
) -> dict[str, str]:
    """Run what is left of a part, until the deadline; return the runs that failed."""
    failures: dict[str, str] = {}
    while time.monotonic() < deadline:
        ready = [
            job.config
            for job in left(part, finished(paths, shrink), shrink)
            if job.config is not None and config_hash(job.config) not in failures
        ]
        if not ready:
            break
        with TerminalProgress() as progress:
            done = sweep([dataclasses.replace(ready[0], root=str(root))], paths, progress)
        failures |= done.failures
    return failures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path("data"), help="folder with CIFAR-10")
    parser.add_argument("--out", type=Path, default=HERE / "runs" / "evidence")
    parser.add_argument("--results", type=Path, help="another file of rows")
    parser.add_argument("--only", choices=[part.name for part in PLAN], help="one part")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run later")
    parser.add_argument("--dry-run", action="store_true", help="only list what is done and to do")
    parser.add_argument("--table", action="store_true", help="only write docs/results.md")
    parser.add_argument("--smoke", action="store_true", help="every arm on digits; no page")
    options = parser.parse_args()
    shrink = smoke if options.smoke else _unchanged
    default = options.out / "smoke.jsonl" if options.smoke else RESULTS
    paths = SweepPaths(options.out, options.results or default)
    parts = [part for part in PLAN if options.only in (None, part.name)]
    if options.dry_run:
        for part in parts:
            _list(part, finished(paths, shrink), shrink)
        return
    deadline, failures = time.monotonic() + 60 * options.minutes, {}
    for part in [] if options.table else parts:
        failures |= run(part, paths, options.root, shrink, deadline)
    if not options.smoke:
        write_page(finished(paths, shrink))
    if failures:
        raise SystemExit("failed:\n" + "\n".join(failures.values()))


def _list(part: Part, done: Sweep, shrink: Callable[[Config], Config]) -> None:
    every, missing = jobs(part, done, shrink), left(part, done, shrink)
    print(f"{part.name}: {len(every) - len(missing)} of {len(every)} runs done. {part.title}")
    for job in every:
        state = "to do" if job in missing else "done"
        if job.config is None:
            print(f"  waits  {job.arm.name}, seed {job.seed}: its step is chosen by seed 0")
            continue
        step = f", step {job.config.step:g}" if job.arm.candidates else ""
        print(
            f"  {state:5}  {job.arm.name}{step}, seed {job.seed}: {job.config.model} "
            f"×{job.config.width:g}, epochs {' + '.join(str(n) for n in job.arm.epochs if n)}"
        )


def _unchanged(config: Config) -> Config:
    return config


if __name__ == "__main__":
    main()
