"""Every method on real CIFAR-10 at a reduced scale: the jobs behind docs/results.md.

    python benchmarks/lite.py --root data   # resumable, about six hours of one core
    python benchmarks/lite.py --root data --only curve  # one part
    python benchmarks/lite.py --table                   # docs/results.md from the results

Each finished job is one row of benchmarks/results/cifar10_lite.jsonl, found by its configuration.
Settings and seeds (0, 1, 2) stand here and nowhere else; `dafp reproduce` and `dafp compare` with
the commands of the page do the same jobs.
"""

import argparse
import dataclasses
from collections.abc import Callable
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
LONGER = 30  # epochs of sparse training, as many as taylor trains before its finetuning
SLOW = 0.01  # rate for asfp once more, which fails at 0.1
PENALTY = 2e-3  # for slm once more: the λ of its released code hardly acts in so few steps
SETTINGS = (
    "model=vgg16", "width=0.25", "images=5000", "precision=bf16",
    "baseline.epochs=15", "sparse.epochs=15", "finetune.epochs=10",
)  # fmt: skip
ASKED = {"ablation-importance": (), "ablation-stability": ("cifar10/*",)}  # tables, and their rows


@dataclass(frozen=True)
class Part:
    """Some of the jobs, the command that does them, and how they are told."""

    command: str
    jobs: list[Config]
    told: Callable[[list[Config], Sweep], list[str]]


def parts() -> dict[str, Part]:
    """In the order in which they are worth knowing."""
    found = {}
    for name, rows in ASKED.items():
        some = "".join(f" --rows '{row}'" for row in rows)
        command = f"dafp reproduce {name}{some} --set precision=bf16 --results {RESULTS_NAME}"
        item = with_settings(find(name, "lite", rows), {"precision": "bf16"}, "--set")
        found[name] = Part(command, jobs_of(item, len(SEEDS)), _beside_the_paper(item))
    base = make_config("cifar10-lite", None, list(SETTINGS))
    compare = f"dafp compare --preset cifar10-lite {' '.join(f'--set {s}' for s in SETTINGS)}"
    curve, rest = grid(base, CURVE, RATIOS, SEEDS), grid(base, OTHERS, (0.5,), SEEDS)
    found["curve"] = Part(
        f"{compare} --methods {','.join(CURVE)} --ratios {','.join(map(str, RATIOS))} "
        f"--seeds 0-2 --results {RESULTS_NAME}",
        curve, _curve,
    )  # fmt: skip
    longer = [
        dataclasses.replace(job, sparse=dataclasses.replace(job.sparse, epochs=LONGER))
        for job in grid(base, ("dafp",), RATIOS[1:], SEEDS)
    ]
    found["equal-epochs"] = Part(
        f"{compare.replace('sparse.epochs=15', f'sparse.epochs={LONGER}')} --methods dafp "
        f"--ratios {','.join(map(str, RATIOS[1:]))} --seeds 0-2 --results {RESULTS_NAME}",
        longer, _lines,
    )  # fmt: skip
    found["others"] = Part(
        f"{compare} --methods {','.join(OTHERS)} --ratios 0.5 --seeds 0-2 --results {RESULTS_NAME}",
        rest, _lines,
    )  # fmt: skip
    slowly = make_config("cifar10-lite", None, [*SETTINGS, f"finetune.lr={SLOW}"])
    found["lower-rate"] = Part(
        f"{compare} --set finetune.lr={SLOW} --methods asfp --ratios 0.5 --seeds 0-2 "
        f"--results {RESULTS_NAME}",
        grid(slowly, ("asfp",), (0.5,), SEEDS), _lines,
    )  # fmt: skip
    harder = [
        dataclasses.replace(job, step=PENALTY, target=ratio)
        for job in found["ablation-importance"].jobs
        for ratio in (0.3, 0.7)
        if job.model == "vgg16" and job.method == "slm"
    ]
    found["penalty"] = Part(
        "dafp reproduce ablation-importance --rows 'vgg16/slm/*' "
        f"--set step={PENALTY} --set precision=bf16 --results {RESULTS_NAME} "
        "   # and with --set target=0.7",
        harder, _lines,
    )  # fmt: skip
    anew = [
        dataclasses.replace(base, method="dafp", target=0.5, seed=seed, after=after)
        for after in SCRATCH
        for seed in SEEDS
    ]
    found["scratch"] = Part(
        f"{compare} --set after=scratch-E --methods dafp --ratios 0.5 --seeds 0-2 "
        f"--results {RESULTS_NAME}    # and the same with scratch-B",
        anew, _scratch,
    )  # fmt: skip
    return found


def _beside_the_paper(item: Item) -> Callable[[list[Config], Sweep], list[str]]:
    """A line per row of the paper's table, its figures and ours."""

    def told(jobs: list[Config], done: Sweep) -> list[str]:
        found = answers(item, len(SEEDS), done)
        heads = list(dict.fromkeys(one.figure.name for one in found))
        lines = [
            "| row of the paper | ours | "
            + " | ".join(f"{h.replace('_', ' ')}, paper | ours" for h in heads) + " | n |",
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

    return told


def _curve(jobs: list[Config], done: Sweep) -> list[str]:
    """A line per method, a column per ratio: accuracy, and multiply-adds left."""
    found = entries(jobs, done)
    whole = shown(spread(one.baseline for line in found[:1] for one in line.outcomes))
    lines = [f"The network before pruning has {whole} after its 15 epochs.", ""]
    lines.append("| method | " + " | ".join(f"r = {r:g}" for r in RATIOS) + " |")
    lines.append("|---|" + "--:|" * len(RATIOS))
    for method in CURVE:
        mine = {one.ratio: one for one in found if one.method == method}
        lines.append(f"| {method} | " + " | ".join(_final(mine[r]) for r in RATIOS) + " |")
    lines += ["", "Each of them with what it left of the network:", "", *_lines(jobs, done)]
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
        lines = ["", f"    {part.command}", "", *part.told(part.jobs, _done(part)), ""]
        if left:
            lines += [f"{left} of {len(part.jobs)} jobs are still to be done.", ""]
        fill("results.md", name, lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", default="data", help="where CIFAR-10 is")
    parser.add_argument("--out", type=Path, default=HERE / "runs" / "lite")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", choices=list(parts()), help="one part")
    parser.add_argument("--dry-run", action="store_true", help="only tell what is left to do")
    parser.add_argument("--table", action="store_true", help="only write docs/results.md")
    args = parser.parse_args()
    for name, part in parts().items():
        if args.dry_run:
            print(f"{name}: {_left(part)} of {len(part.jobs)} jobs to do")
        if args.table or args.dry_run or args.only not in (None, name):
            continue
        jobs = [dataclasses.replace(c, root=args.root, threads=args.threads) for c in part.jobs]
        with TerminalProgress() as progress:
            sweep(jobs, SweepPaths(args.out, RESULTS), progress)
    if not args.dry_run:
        write_page()


if __name__ == "__main__":
    main()
