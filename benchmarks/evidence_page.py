"""The tables and the plot of evidence.py, in docs/results.md and docs/pictures/evidence.svg."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from dafp.sweeps import Sweep
from dafp.sweeps.results_store import ResultRow
from dafp.sweeps.statistics import Spread, collapse, outcome, shown, spread
from dafp.training.run_records import Stage
from docpage import DOCS, fill
from evidence_plan import EPOCHS, PLAN, SCORES, Arm, Part, chosen, config, jobs

WIDTH, HEIGHT, EDGE = 760, 460, 60
COLOURS = ("#4878a8", "#e08a3c", "#5a9e6f", "#b5574f", "#8a72b0", "#7f6a55", "#3aa6a6")
DRAWN = ("vgg-50", "vgg-75")


@dataclass(frozen=True)
class Line:
    """The finished runs of an arm, with the candidate that was chosen, if it has candidates."""

    arm: Arm
    step: float | None
    rows: tuple[ResultRow, ...]
    planned: int

    def of(self, value: Callable[[ResultRow], float | None]) -> Spread | None:
        return spread(value(row) for row in self.rows)

    @property
    def final(self) -> Spread | None:
        return self.of(lambda row: accuracy(self.arm, row))

    @property
    def macs(self) -> Spread | None:
        return self.of(lambda row: _left(self.arm, row, "macs"))


def accuracy(arm: Arm, row: ResultRow) -> float | None:
    """Test accuracy after the last epoch; None if the run collapsed."""
    if row["result"].get("collapsed"):
        return None
    return _stage(arm, row)["accuracy"]


def lines(part: Part, done: Sweep) -> list[Line]:
    """One line per arm; of its candidates only the chosen one."""
    found = []
    for arm in part.arms:
        step = chosen(part, arm, done) if arm.candidates else None
        rows = []
        if step is not None or not arm.candidates:
            records = (done.of(config(part, arm, seed, step)) for seed in part.seeds)
            rows = [record for record in records if record is not None]
        found.append(Line(arm, step, tuple(rows), len(part.seeds)))
    return found


def write_page(done: Sweep) -> None:
    """Write the tables and the plot, if there is a row yet."""
    if not done.records:
        return
    text = [
        "",
        "## All of CIFAR-10, at equal multiply-adds and equal epochs",
        "",
        f"45,000 images to train, 5,000 to validate, all 10,000 to test; {EPOCHS} epochs in all, "
        "whatever the arm, in bf16; test accuracy after the last epoch, mean ± sample standard "
        "deviation. "
        "λ of slm and Δ of Algorithm 1 are the best of three on the validation images, with seed "
        "0. A narrow network has fewer channels in every layer. The whole plan was committed "
        "before the first run. Where n is smaller than planned, runs are missing.",
        "",
        "    python benchmarks/evidence.py --root data --out DIR",
        "",
    ]
    by_part = {part.name: lines(part, done) for part in PLAN}
    drawn = [(name, line) for name in DRAWN for line in by_part[name] if line.final and line.macs]
    if drawn:
        (DOCS / "pictures" / "evidence.svg").write_text(plot(drawn))
        text += ["![Accuracy against multiply-adds, with error bars](pictures/evidence.svg)", ""]
    for part in PLAN:
        if any(line.rows for line in by_part[part.name]):
            text += [f"### {part.title}", "", *_table(by_part[part.name]), ""]
        missing = sum(j.config is None or done.of(j.config) is None for j in jobs(part, done))
        if missing:
            text += [f"Not run yet: {missing} runs of “{part.title}”.", ""]
    found = {line.arm.name: line for line in by_part["factorial"] if line.rows}
    if found:
        text += [*_lambda(found), *_dynamics(found), *_architecture(found)]
    fill("results.md", "evidence", text)


def _table(found: Sequence[Line]) -> list[str]:
    table = [
        "| arm | accuracy | n | before fine-tuning | multiply-adds (10⁶) | parameters (10³) "
        "| fewest channels | epochs | chosen step |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for line in found:
        if not line.rows:
            continue
        each = [outcome(row) for row in line.rows]
        own = not line.arm.stage
        pruned = shown(spread(one.pruned for one in each)) if own else ""
        fewest = "/".join(str(one.fewest) for one in each) if own else ""
        params = line.of(lambda row, arm=line.arm: _left(arm, row, "params"))
        final = shown(line.final) if line.final else "N/A"
        note = f" ({collapse(each)})" if own and collapse(each) else ""
        epochs = " + ".join(str(n) for n in line.arm.epochs if n) if own else str(EPOCHS)
        table.append(
            f"| {line.arm.name} | {final}{note} | {len(line.rows)} of {line.planned} | {pruned} "
            f"| {_mean(line.macs, 1e-6)} | {_mean(params, 1e-3)} | {fewest} | {epochs} "
            f"| {'' if line.step is None else f'{line.step:g}'} |"
        )
    return table


def _lambda(found: dict[str, Line]) -> list[str]:
    """The λ ablation of the paper: p fixed and λ adjusted, or λ fixed and p searched."""
    table = [
        "#### Fixed or automatic λ",
        "",
        "| λ | before pruning | p | after pruning | after fine-tuning | P at the end of training |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for name in ("auto", "Algorithm 1", "fixed"):
        line = found.get(f"{name}, γ·‖W‖, in each layer")
        if line is None:
            continue
        each = [outcome(row) for row in line.rows]
        p = spread(one.found_p for one in each)
        ends = spread(row["result"]["sparsity"].get("reached") for row in line.rows)
        cells = (
            shown(spread(one.sparse for one in each)),
            "" if p is None else f"{p.mean:.2g}",
            shown(spread(one.pruned for one in each)),
            shown(line.final),
            shown(ends),
        )
        table.append(f"| {name} | {' | '.join(cells)} |")
    return [*table, ""]


def _dynamics(found: dict[str, Line]) -> list[str]:
    """λ and P over the epochs of sparse training, seed 0."""
    table = ["#### λ and P over the epochs", "", "| training | column | epochs 3, 6, 9, 12, 15 |"]
    table.append("|---|---|---|")
    for name, line in found.items():
        if not name.endswith("γ·‖W‖, in each layer"):
            continue
        curves = line.rows[0]["curves"].get("sparse", {})
        sparsity = curves.get("sparsity") or curves.get("sparsity_dependency_aware") or []
        for column, values in (("λ", curves.get("penalty", [])), ("P", sparsity)):
            shown_values = ", ".join(f"{value:.3g}" for value in values[2::3])
            table.append(f"| {name.partition(',')[0]} | {column} | {shown_values} |")
    return [*table, ""]


def _architecture(found: dict[str, Line]) -> list[str]:
    """Filters left in every layer, seed 0."""
    wanted = {name: found[name] for name in (_cell("fixed"), _cell("auto")) if name in found}
    table = ["#### Filters left in every layer", "", "| arm | filters |", "|---|---|"]
    for name, line in wanted.items():
        left = ", ".join(str(row[2]) for row in line.rows[0]["kept"])
        table.append(f"| {name} | {left} |")
    return [*table, ""]


def _cell(name: str) -> str:
    """The cell of slm (fixed), or that of dafp (auto)."""
    plain, aware = SCORES
    score, rule = (plain, "global") if name == "fixed" else (aware, "in each layer")
    return f"{name}, {score}, {rule}"


def plot(found: Sequence[tuple[str, Line]]) -> str:
    """An SVG: accuracy against multiply-adds, a point with error bars per arm and part."""
    names = list(dict.fromkeys(line.arm.name for _, line in found))
    points = [(line.arm.name, line.macs.mean / 1e6, line.final) for _, line in found]
    most = 1.05 * max(x for _, x, _ in points)
    lowest = min(y.mean - (y.std or 0) for _, _, y in points)
    highest = max(y.mean + (y.std or 0) for _, _, y in points)
    room = max(0.005, 0.08 * (highest - lowest))
    low, high = lowest - room, highest + room

    def place(x: float, y: float) -> tuple[float, float]:
        across = EDGE + (WIDTH - EDGE - 160) * x / most
        return across, HEIGHT - EDGE - (HEIGHT - 2 * EDGE) * (y - low) / (high - low)

    parts = []
    for n in range(6):
        y = low + (high - low) * n / 5
        left, up = place(0, y)
        parts.append(f'<path d="M{left} {up:.1f}H{WIDTH - 160}" stroke="#ddd"/>')
        parts.append(_text(left - 46, up + 4, f"{100 * y:.1f} %"))
        across, bottom = place(most * n / 5, low)
        parts.append(_text(across - 10, bottom + 18, f"{most * n / 5:.1f}"))
    parts.append(_text(EDGE, HEIGHT - 14, "multiply-adds, 10⁶"))
    parts.append(_text(EDGE - 46, 30, "test accuracy"))
    for name, macs, final in points:
        x, y = place(macs, final.mean)
        colour = COLOURS[names.index(name) % len(COLOURS)]
        if final.std:
            top, end = (
                place(macs, final.mean + final.std)[1],
                place(macs, final.mean - final.std)[1],
            )
            parts.append(
                f'<path d="M{x - 4:.1f} {top:.1f}h8M{x:.1f} {top:.1f}V{end:.1f}M{x - 4:.1f} '
                f'{end:.1f}h8" stroke="{colour}"/>'
            )
        title = f"{name}: {final.percent()} %, {macs:.2f}·10⁶"
        parts.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}">'
            f"<title>{escape(title)}</title></circle>"
        )
    for n, name in enumerate(names):
        parts.append(
            f'<circle cx="{WIDTH - 140}" cy="{EDGE + 20 * n}" r="4" fill="{COLOURS[n % 7]}"/>'
        )
        parts.append(_text(WIDTH - 130, EDGE + 4 + 20 * n, name))
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" '
        f'viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12" role="img">'
        '<rect width="100%" height="100%" fill="white"/>'
    )
    return "\n".join([head, *parts, "</svg>\n"])


def _text(x: float, y: float, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="#222">{escape(text)}</text>'


def _mean(found: Spread | None, factor: float) -> str:
    return "" if found is None else f"{found.mean * factor:.2f}"


def _left(arm: Arm, row: ResultRow, unit: str) -> float | None:
    """Multiply-adds or parameters of the network that is reported; None if it collapsed."""
    return None if row["result"].get("collapsed") else _stage(arm, row).get(unit)


def _stage(arm: Arm, row: ResultRow) -> Stage:
    """The stage that is reported."""
    stages = row["result"]["stages"]
    if not arm.stage:
        return stages[-1]
    return next(stage for stage in stages if stage["stage"] == arm.stage)
