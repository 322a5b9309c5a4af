"""Tables of docs/zoo.md for the families other than classification."""

import statistics
from typing import Any

Record = dict[str, Any]
DAFP, KEEP, PEER = ("dafp", 0.5), ("dafp keep", 0.3), ("torch-pruning", 0.5)

TEXT = (
    "Detection, segmentation, attention, video, generation and speech: 50 % of the filters of every layer with coupled residual "
    'streams, and 30 % with `residual="keep"`, the default of `dafp.trace`. *exact*: equal to the masked network, as '
    "above, in eval mode on the example and on two more inputs (batches of two and three, images of other sizes, as far "
    "as the network takes them; *inputs* counts them), and in train mode with the same random state and without "
    "dropout. Detectors run on images of 320 pixels, and are compared by what goes into thresholds, sorting and "
    "suppression where these decide the output. *as counted*: the multiply-adds that the plan predicts are those that are "
    "counted in the pruned network. Beside a CPU build of torch, torchvision has no compiled operators: `nms` and "
    "`roi_align` are those of `tests/support/cpu_torchvision`, for both tools. Torch-Pruning is told which layers make the output. Each tool has 60 seconds of "
    "processor time for a network; *timeout* means that they were not enough."
)


def lines(records: list[Record], family_of: dict[str, str]) -> list[str]:
    """One table of all families, then one per family with a row per network."""
    by = {(r["net"], r["tool"], r["ratio"]): r for r in records}
    families = [f for f in dict.fromkeys(family_of.values()) if f != "classification"]
    nets = {f: [n for n, own in family_of.items() if own == f] for f in families}
    revisions = sorted({by[k]["revision"] for k in by if k[1:] == DAFP and "revision" in by[k]})
    found = ["## Other families", "", TEXT, "",
             f"Revisions of dafp that made the rows: {', '.join(revisions)}.", "",
             "| family | networks | dafp: pruned | exact | `keep`: exact | as counted | median s | most s | "
             "Torch-Pruning: pruned | exact | seconds, dafp to Torch-Pruning |",
             "|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    found += [_summary(by, family, nets[family]) for family in families]
    for family in families:
        measured = [n for n in nets[family] if (n, *DAFP) in by]
        found += ["", f"### {family.capitalize()}", "", *_rows(by, measured)]
    return found


def _summary(by: dict[Any, Record], family: str, nets: list[str]) -> str:
    ours, keep, theirs = (
        [by[(n, *way)] for n in nets if (n, *way) in by] for way in (DAFP, KEEP, PEER)
    )
    done, kept, peer = (
        [r for r in rows if r["outcome"] == "done"] for rows in (ours, keep, theirs)
    )
    seconds = [r["total_s"] for r in ours if "total_s" in r]
    peer_seconds = {r["net"]: r["total_s"] for r in peer}
    ratios = [r["total_s"] / peer_seconds[r["net"]] for r in done if r["net"] in peer_seconds]
    cells = [
        family, f"{len(ours)} of {len(nets)}", str(len(done)), str(_exact_ones(done)),
        f"{_exact_ones(kept)} of {len(keep)}", str(sum(_as_counted(r) for r in done)),
        f"{statistics.median(seconds):.1f}" if seconds else "–",
        f"{max(seconds):.1f}" if seconds else "–",
        str(len(peer)), str(_exact_ones(peer)),
        f"{statistics.median(ratios):.2f} (median of {len(ratios)})" if ratios else "–",
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _rows(by: dict[Any, Record], nets: list[str]) -> list[str]:
    found = ["| network | prunable | left | exact | inputs | train | as counted | s | forward s | `keep`: left | exact "
             "| s | Torch-Pruning: left | exact | s | why dafp keeps filters |",
             "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|"]  # fmt: skip
    for net in nets:
        ours, keep, theirs = (by.get((net, *way), {"outcome": "–"}) for way in (DAFP, KEEP, PEER))
        forward = by.get((net, "forward", 0.0), {})
        done = ours["outcome"] == "done"
        cells = [
            net, f"{ours['prunable']:.0%}" if done else "–", _left(ours), _exact(ours),
            str(ours.get("inputs", "–")), _train(ours), ("yes" if _as_counted(ours) else "**no**") if done else "–",
            str(ours.get("total_s", "–")), str(forward.get("total_s", "–")),
            _left(keep), _exact(keep), str(keep.get("total_s", "–")),
            _left(theirs), _exact(theirs), str(theirs.get("total_s", "–")),
            ours.get("why") or ours.get("error", ""),
        ]  # fmt: skip
        found.append(f"| {' | '.join(cells)} |")
    return found


def _exact_ones(rows: list[Record]) -> int:
    return sum(r.get("exact") is True for r in rows)


def _as_counted(record: Record) -> bool:
    return bool(record["macs_predicted"] == record["macs_counted"])


def _left(record: Record) -> str:
    if record["outcome"] != "done":
        return str(record["outcome"])
    return f"{record['left'] / record['params']:.0%}"


def _exact(record: Record) -> str:
    if "exact" not in record:
        return "–"
    return {True: "yes", False: "**no**", None: "?"}[record["exact"]]


def _train(record: Record) -> str:
    """Whether train mode is exact; – where the network does not run in it."""
    gap = record.get("train_gap")
    return "–" if gap is None else "yes" if gap <= 1e-4 else "**no**"


def before_after(rows: list[Record]) -> list[str]:
    """Seconds of two revisions of dafp beside those of Torch-Pruning, measured by turns."""
    if not rows:
        return []
    before, after = rows[-1]["before_revision"], rows[-1]["after_revision"]
    found = ["## Time, before and after", "",
             "Processor seconds of trace, scores and prune (half of the filters, coupled streams), measured by turns by "
             f"`benchmarks/before_after.py`; revisions {before} and {after}.", "",
             "| network | before | after | Torch-Pruning | after to Torch-Pruning |",
             "|---|---|---|---|---|"]  # fmt: skip
    for row in rows:
        seconds = [str(row.get(what, "failed")) for what in ("before", "after", "peer")]
        ratio = f"{row['after'] / row['peer']:.2f}" if "peer" in row else "–"
        found.append(f"| {row['net']} | {' | '.join(seconds)} | {ratio} |")
    both = [r for r in rows if "peer" in r]
    medians = [statistics.median(r[what] / r["peer"] for r in both) for what in ("before", "after")]
    worst = max(r["after"] / r["peer"] for r in both)
    return [*found, "", f"Median of the {len(both)} networks that both prune: {medians[0]:.2f} times the time of "
            f"Torch-Pruning before, {medians[1]:.2f} after; the worst is {worst:.2f}."]  # fmt: skip
