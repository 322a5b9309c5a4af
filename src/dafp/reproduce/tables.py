"""The rows of the paper's tables: what is printed there, and the configuration that reproduces it.

The numbers are in tables.json, with a note where the paper copied them from another paper.
"""

import json
import statistics
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from ..training.config import Config
from .profiles import configure

TABLES = {
    "cifar10": "Accuracy on CIFAR-10",
    "cifar100": "Accuracy on CIFAR-100",
    "svhn": "Accuracy on SVHN",
    "imagenet": "Accuracy on ImageNet",
    "ablation-importance": "What the score and the automatic λ are worth",
    "ablation-lambda": "Adjusted λ with fixed p, or fixed λ with searched p",
    "ablation-scratch": "Fine-tuning, or training the pruned network from scratch",
    "ablation-stability": "Accuracy and fewest channels, run by run",
}

# multiply-adds of the unpruned networks, 10⁹: rows without a ratio get their target from these
_WHOLE = {"resnet50": 4.13, "resnet101": 7.86}
_STAGE = {
    "baseline": "baseline",
    "before_pruning": "sparse",
    "before_finetune": "pruned",
    "finetune": "final",
    "scratch": "final",
    "accuracy": "final",
}
# stage -> factor from our number to that which is shown, and how it is printed; others are percent
PLAIN = {
    "fewest": (1.0, ".3g"),
    "found p": (1.0, ".2g"),
    "params": (1e-7, ".2f"),
    "macs": (1e-9, ".2f"),
    "params of baseline": (1e-7, ".2f"),
    "macs of baseline": (1e-9, ".2f"),
}
_PLAIN_FIGURES = {
    "p": ("p", "found p"),
    "params_1e7": ("parameters_(10⁷)", "params"),
    "macs_1e9": ("multiply-adds_(10⁹)", "macs"),
}
_METHODS = {"fixed p, adjusted lambda": "dafp", "fixed lambda 1e-5, searched p": "slm+da+local"}


@dataclass(frozen=True)
class Figure:
    """One number of a row: what the paper prints, and where ours comes from."""

    name: str
    printed: str  # as text, "N/A" where it collapsed, "" where nothing is printed
    mean: float | None  # a share; of the stages in PLAIN a plain number
    config: Config
    stage: str  # baseline, sparse, pruned, final, final or collapsed, or one of PLAIN


@dataclass(frozen=True)
class TableRow:
    """A row of a table, or a point of a figure."""

    name: str  # model/method/ratio
    figures: tuple[Figure, ...]
    note: str = ""  # source of the numbers, and remarks


@dataclass(frozen=True)
class Item:
    """A table or figure of the paper."""

    name: str
    title: str
    rows: tuple[TableRow, ...]
    runs: int  # number of runs in the paper, or ours where the paper states none
    note: str = ""


def table(name: str, profile: str) -> Item:
    """One of TABLES with the configurations of a profile."""
    content = json.loads((files(__package__) / "tables.json").read_text(encoding="utf-8"))[name]
    shared = {key: content[key] for key in ("dataset", "model", "ratio") if key in content}
    raw = [shared | row for row in content["rows"]]
    rows = tuple(_row(name, row, raw, profile) for row in raw)
    runs = content.get("runs", content.get("repeats", 1 if name == "imagenet" else 10))
    return Item(name, TABLES[name], rows, runs, content.get("note", ""))


def _row(
    table_name: str, row: dict[str, Any], others: list[dict[str, Any]], profile: str
) -> TableRow:
    method = _METHODS.get(row["method"], row["method"])
    parts = [row["model"], method, "" if row["ratio"] is None else f"{row['ratio']:g}"]
    if table_name == "ablation-stability":
        parts.insert(0, row["dataset"])
    notes = [row.get("source", ""), row.get("note", "")]
    if table_name == "imagenet" and row["ratio"] is None and method != "baseline":
        notes.append("no ratio is stated: the target is the share of multiply-adds removed")
    config = _config(row, others, profile, method)
    return TableRow(
        "/".join(part for part in parts if part),
        tuple(_figures(row, config, profile, method)),
        "; ".join(note for note in notes if note),
    )


def _config(row: dict[str, Any], others: list[dict[str, Any]], profile: str, method: str) -> Config:
    """The configuration of a row; for a baseline that of the dafp job that trains and prunes it."""
    more: dict[str, Any] = {}
    ratio = row["ratio"]
    if method == "baseline":
        pruned = [o for o in others if (o["model"], o["method"]) == (row["model"], "dafp")]
        method, ratio = "dafp", pruned[0]["ratio"]
    if ratio is None:
        more["unit"] = "macs"
        ratio = round(1 - row["macs_1e9"] / _WHOLE[row["model"]], 2)
    if method == "slm+da+local":
        more["step"] = 1e-5
    return configure(
        profile, model=row["model"], data=row["dataset"], method=method, ratio=ratio, **more
    )


def _figures(row: dict[str, Any], config: Config, profile: str, method: str) -> list[Figure]:
    if "runs" in row:
        return _each_run(row["runs"], config)
    found = []
    for name, stage in _STAGE.items():
        if name not in row:
            continue
        used = config
        if name == "scratch":
            used = configure(
                profile,
                model=row["model"],
                data=row["dataset"],
                method=method,
                ratio=row["ratio"],
                after="scratch-E",
            )
        where = "baseline" if row["method"] == "baseline" else stage
        found.append(Figure(name, _printed(row[name]), _mean(row[name]), used, where))
    for key, (name, stage) in _PLAIN_FIGURES.items():
        if row.get(key) is not None:
            where = f"{stage} of baseline" if row["method"] == "baseline" else stage
            form = PLAIN[where][1]
            mean = row[key]
            if key == "macs_1e9" and "two operations" in row.get("note", ""):
                mean /= 2  # its authors count a multiplication and an addition as two
            found.append(Figure(name, f"{row[key]:{form}}", mean, config, where))
    return found


def _each_run(runs: list[list[float]], config: Config) -> list[Figure]:
    """Numbers of the stability table, which prints accuracy and fewest channels of every run."""
    accuracy, fewest = ([run[at] for run in runs] for at in (0, 1))
    return [
        Figure(
            "finetune",
            _printed({"mean": statistics.fmean(accuracy), "std": statistics.stdev(accuracy)}),
            statistics.fmean(accuracy) / 100,
            config,
            "final or collapsed",
        ),
        Figure(
            "fewest channels",
            f"{min(fewest):g} to {max(fewest):g}",
            statistics.fmean(fewest),
            config,
            "fewest",
        ),
    ]


def _printed(value: Any) -> str:
    if value is None:
        return "N/A"
    if isinstance(value, dict):
        return f"{value['mean']:.2f} ± {value['std']:.2f}"
    return f"{value:.2f}"


def _mean(value: Any) -> float | None:
    if value is None:
        return None
    return float(value["mean"] if isinstance(value, dict) else value) / 100
