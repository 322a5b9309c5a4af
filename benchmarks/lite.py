"""Which method is best at the same training effort? Every method on CIFAR-10 at a reduced scale.

    python benchmarks/lite.py --root data               # resumable, about six hours of one core
    python benchmarks/lite.py --root data --only curve  # one part
    python benchmarks/lite.py --table                   # only write docs/results.md

Each finished job is one row of benchmarks/results/cifar10_lite.jsonl, found by its configuration.
Settings and seeds (0, 1, 2) are defined here; the commands on the page run the same jobs.
"""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dafp.cli.progress import TerminalProgress
from dafp.reproduce import Item, answers, find, jobs_of, with_settings
from dafp.sweeps import Sweep, sweep
from dafp.sweeps.comparison import Entry, entries, grid
from dafp.sweeps.results_store import SweepPaths, read_records
from dafp.sweeps.statistics import collapse, shown, spread
from dafp.training.config import Config, make_config
from docpage import fill

HERE = Path(__file__).parent.parent
RESULTS_NAME = "benchmarks/results/cifar10_lite.jsonl"
RESULTS = HERE / RESULTS_NAME
SEEDS = (0, 1, 2)
RATIOS = (0.3, 0.5, 0.7, 0.8)
CURVE = ("dafp", "slm", "l1-norm", "fpgm", "taylor")
OTHERS = (
    "slm+da", "sfp", "asfp", "thinet", "ssr-l21", "ssr-l20", "bn-ista", "random", "one-shot",
)  # fmt: skip
SCRATCH = ("scratch-E", "scratch-B")
LONGER = "sparse.epochs=30"  # as many epochs as taylor trains before its fine-tuning
SLOWER = "finetune.lr=0.01"  # asfp fails at 0.1
PENALTY = 2e-3  # for slm: the λ of its released code has little effect in so few steps
SETTINGS = (
    "model=vgg16", "width=0.25", "images=5000", "precision=bf16",
    "baseline.epochs=15", "sparse.epochs=15", "finetune.epochs=10",
)  # fmt: skip
# tables of the paper, and which of their rows; (): all
TABLES = {"ablation-importance": (), "ablation-stability": ("cifar10/*",)}
HEADINGS = {"before_finetune": "before fine-tuning", "finetune": "after fine-tuning"}


@dataclass(frozen=True)
class Part:
    """One table of the page: its jobs, the command that runs them, and how to write it."""

    command: str
    jobs: list[Config]
    table: Callable[[list[Config], Sweep], list[str]]


def parts() -> dict[str, Part]:
    """All parts, the most informative first."""
    found = {}
    for name, rows in TABLES.items():
        item = with_settings(find(name, "lite", rows), {"precision": "bf16"}, "--set")
        jobs = jobs_of(item, len(SEEDS))
        found[name] = Part(_reproduce(name, rows), jobs, _beside_the_paper(item))
    found["curve"] = Part(*_compare(CURVE, RATIOS), _curve)
    found["equal-epochs"] = Part(*_compare(("dafp",), RATIOS[1:], LONGER), _lines)
    found["others"] = Part(*_compare(OTHERS, (0.5,)), _lines)
    found["lower-rate"] = Part(*_compare(("asfp",), (0.5,), SLOWER), _lines)
    command = _reproduce("ablation-importance", ("vgg16/slm/*",), f"step={PENALTY}")
    harder = [
        dataclasses.replace(job, step=PENALTY, target=ratio)
        for job in found["ablation-importance"].jobs
        for ratio in (0.3, 0.7)
        if job.model == "vgg16" and job.method == "slm"
    ]
    found["penalty"] = Part(f"{command}    # and with --set target=0.7", harder, _lines)
    each = [_compare(("dafp",), (0.5,), f"after={after}") for after in SCRATCH]
    found["scratch"] = Part(
        f"{each[0][0]}    # and the same with scratch-B", [j for _, jobs in each for j in jobs],
        _scratch,
    )  # fmt: skip
    return found


def _reproduce(name: str, rows: Sequence[str], *changes: str) -> str:
    """The command that runs some rows of a table of the paper."""
    some = "".join(f" --rows '{row}'" for row in rows)
    settings = " ".join(f"--set {setting}" for setting in (*changes, "precision=bf16"))
    return f"dafp reproduce {name}{some} {settings} --results {RESULTS_NAME}"


def _compare(
    methods: Sequence[str], ratios: Sequence[float], *changes: str
) -> tuple[str, list[Config]]:
    """The command that compares these methods at these ratios, and its jobs."""
    values = dict(setting.split("=") for setting in (*SETTINGS, *changes))
    settings = [f"{key}={value}" for key, value in values.items()]
    command = (
        f"dafp compare --preset cifar10-lite {' '.join(f'--set {s}' for s in settings)} "
        f"--methods {','.join(methods)} --ratios {','.join(map(str, ratios))} --seeds 0-2 "
        f"--results {RESULTS_NAME}"
    )
    return command, grid(make_config("cifar10-lite", None, settings), methods, ratios, SEEDS)


def _beside_the_paper(item: Item) -> Callable[[list[Config], Sweep], list[str]]:
    """A function that writes one line per row of the paper's table: its numbers and ours."""

    def table(jobs: list[Config], done: Sweep) -> list[str]:
        found = answers(item, len(SEEDS), done)
        heads = list(dict.fromkeys(one.figure.name for one in found))
        lines = [
            "| row of the paper | ours | "
            + " | ".join(f"{_heading(h)}, paper | ours" for h in heads) + " | n |",
            "|---|---|" + "--:|--:|" * len(heads) + "--:|",
        ]  # fmt: skip
        for row in item.rows:
            mine = [one for one in found if one.row is row]
            config = mine[0].figure.config
            figures = " | ".join(
                f"{one.figure.printed} | {_text(one.text, one.collapsed)}" for one in mine
            )
            lines.append(
                f"| {row.name} | {config.model} ×{config.width:g}, {config.method} "
                f"| {figures} | {mine[0].finished} |"
            )
        return lines

    return table


def _heading(figure: str) -> str:
    return HEADINGS.get(figure, figure.replace("_", " "))


def _curve(jobs: list[Config], done: Sweep) -> list[str]:
    """One line per method and one column per ratio; then every row with its details."""
    found = entries(jobs, done)
    whole = shown(spread(one.baseline for line in found[:1] for one in line.outcomes))
    lines = [f"The unpruned network has an accuracy of {whole} after its 15 epochs.", ""]
    lines.append("| method | " + " | ".join(f"r = {r:g}" for r in RATIOS) + " |")
    lines.append("|---|" + "--:|" * len(RATIOS))
    for method in CURVE:
        mine = {one.ratio: one for one in found if one.method == method}
        lines.append(f"| {method} | " + " | ".join(_final(mine[r]) for r in RATIOS) + " |")
    lines += ["", "Details:", "", *_lines(jobs, done)]
    return lines


def _lines(jobs: list[Config], done: Sweep) -> list[str]:
    return [
        "| method | r | before pruning | after pruning | accuracy | n | multiply-adds left "
        "| fewest channels | epochs |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
        *(_line(one.method, one) for one in entries(jobs, done)),
    ]


def _scratch(jobs: list[Config], done: Sweep) -> list[str]:
    lines = _lines([], done)
    for after in SCRATCH:
        (one,) = entries([job for job in jobs if job.after == after], done)
        lines.append(_line(f"dafp, then {after}", one))
    return lines


def _line(name: str, one: Entry) -> str:
    fewest = "/".join(str(o.fewest) for o in one.outcomes)
    cells = (
        name, f"{one.ratio:g}",
        shown(one.spread(lambda o: o.baseline if o.sparse is None else o.sparse)),
        shown(one.spread(lambda o: o.pruned)), _final(one),
        str(len(one.outcomes)), shown(one.spread(lambda o: o.macs)), fewest,
        one.epochs,
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _final(one: Entry) -> str:
    if one.outcomes and one.final is None:
        return _text("N/A", collapse(one.outcomes))
    return _text(shown(one.final), collapse(one.outcomes))


def _text(text: str, collapsed: str) -> str:
    return f"{text} ({collapsed})" if collapsed else text


def _done(part: Part) -> Sweep:
    return Sweep(read_records(SweepPaths(Path(), RESULTS), part.jobs))


def _left(part: Part) -> int:
    return len(part.jobs) - len(_done(part).records)


def write_page() -> None:
    for name, part in parts().items():
        left = _left(part)
        lines = ["", f"    {part.command}", "", *part.table(part.jobs, _done(part)), ""]
        if left:
            lines += [f"{left} of {len(part.jobs)} jobs are missing.", ""]
        fill("results.md", name, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default="data", help="folder with CIFAR-10")
    parser.add_argument("--out", type=Path, default=HERE / "runs" / "lite")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=list(parts()), help="one part")
    parser.add_argument(
        "--dry-run", action="store_true", help="only print how many jobs are missing"
    )
    parser.add_argument("--table", action="store_true", help="only write docs/results.md")
    args = parser.parse_args()
    for name, part in parts().items():
        if args.dry_run:
            print(f"{name}: {_left(part)} of {len(part.jobs)} jobs missing")
        if args.table or args.dry_run or args.only not in (None, name):
            continue
        jobs = [dataclasses.replace(c, root=args.root, threads=args.threads) for c in part.jobs]
        with TerminalProgress() as progress:
            sweep(jobs, SweepPaths(args.out, RESULTS), progress)
    if not args.dry_run:
        write_page()


if __name__ == "__main__":
    main()
