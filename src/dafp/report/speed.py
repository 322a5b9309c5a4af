"""Measured speed in words: with its interval, or that the machine was too busy to tell."""

from collections.abc import Mapping, Sequence
from typing import Any

from ..selection.width_step import step_in
from ..training.run_records import Stage
from . import formatting
from .page import Tile

BUSY = "too busy to tell"


def speed_text(found: Mapping[str, Any]) -> str:
    """A measured speed-up with its 95 % interval, or that the machine was too busy."""
    if found["doubt"]:
        return BUSY
    return f"{found['speedup']:.2f}× ({found['low']:.2f} to {found['high']:.2f})"


def latency_text(stage: Mapping[str, Any]) -> str:
    """The latency of a stage; no number if the machine was too busy to tell."""
    measured = stage.get("speeds")
    return BUSY if measured and measured[0]["doubt"] else formatting.seconds(stage.get("latency_s"))


def speed_line(speed: Mapping[str, Any], before: int, after: int) -> str:
    """One line if fewer multiply-adds are not faster, or if the machine was too busy to tell."""
    if after >= before or (not speed["doubt"] and speed["low"] > 1):
        return ""
    fewer = f"{1 - after / before:.0%} fewer multiply-adds"
    if speed["doubt"]:
        return f"the machine was {BUSY} if {fewer} are faster ({speed['doubt']}): see dafp bench"
    where = "one thread" if speed["threads"] == 1 else f"{speed['threads']} threads"
    return (
        f"{fewer} are not faster here: {speed_text(speed)} in PyTorch on {where}; dafp bench "
        "measures other runtimes, --target latency=… removes time, --round-to 16 rounds widths"
    )


def rounding_line(widths: Sequence[tuple[int, int]]) -> str:
    """What widths (before, after) were rounded to, as they are unless a command says otherwise."""
    step = step_in(widths)
    if step == 1:
        return ""
    return f"widths are multiples of {step}, which computes faster; --round-to 1 allows any width"


def speed_line_of(stages: Sequence[Stage]) -> str:
    """`speed_line` of the last network of a run against the first; "" if it was not measured."""
    first, last = stages[0], stages[-1]
    speeds, before, after = last.get("speeds"), first.get("macs"), last.get("macs")
    return speed_line(speeds[0], before, after) if speeds and before and after else ""


def speed_note(stage: Mapping[str, Any], first: Mapping[str, Any]) -> str:
    """The speed-up over the first stage, if any; runs of version 0.1 have latencies only."""
    late, soon = stage.get("latency_s"), first.get("latency_s")
    measured = stage.get("speeds")
    if measured and measured[0]["doubt"]:
        return ""  # `latency_text` says it
    if not measured:
        return "" if late == soon else formatting.speedup(late, soon)
    return "" if late == soon else speed_text(measured[0])


def speed_tile(first: Stage, last: Stage) -> Tile:
    """The measured speed-up; no number if the machine was too busy to tell."""
    late, soon = last["latency_s"], first["latency_s"]
    note = f"{formatting.seconds(soon)} → {formatting.seconds(late)}"
    measured = last.get("speeds")
    if not measured:
        mood = "good" if (late or 0) < (soon or 0) else "bad"
        return Tile("Speed", formatting.speedup(late, soon), note, mood)
    one = measured[0]
    if one["doubt"]:
        return Tile("Speed", BUSY, f"{one['doubt']}; measure with dafp bench", "words")
    note += f" on one thread, 95 %: {one['low']:.2f} to {one['high']:.2f}×"
    for more in measured[1:]:
        gain = BUSY if more["doubt"] else f"{more['speedup']:.2f}×"
        note += f"; {more['threads']} threads: {gain}"
    mood = "good" if one["low"] > 1 else "bad" if one["high"] < 1 else ""
    return Tile("Speed", f"{one['speedup']:.2f}×", note, mood)
