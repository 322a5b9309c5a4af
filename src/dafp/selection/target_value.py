"""A target as a value: a share of a unit to remove, or how much of it may be left."""

import re
from dataclasses import dataclass

from ..choices import TARGET_UNITS as UNITS
from ..errors import PlanError

_NAMES = ", ".join(map(repr, UNITS))
_SIZES = {"k": 1e3, "m": 1e6, "g": 1e9}
_TIMES = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_AMOUNT = re.compile(r"([0-9.]+(?:e[0-9]+)?)\s*([a-z]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Target:
    """What to remove of a unit: a share of it, or all but an amount that may be left.

    Examples:
        >>> dafp.selection.Target("macs", share=0.5)
        Target(unit='macs', share=0.5, left=None)
        >>> dafp.selection.Target("params", left=5e6).share_of(20e6)
        0.75
    """

    unit: str  # "filters", "params", "macs" or "latency"
    share: float | None = None  # to remove
    left: float | None = None  # filters, parameters, multiply-adds, or seconds

    def __post_init__(self) -> None:
        if self.unit not in UNITS:
            raise PlanError(f"unit={self.unit!r} is not known; choose one of {_NAMES}")
        if (self.share is None) == (self.left is None):
            raise PlanError("a target has either a share to remove, or an amount that may be left")
        if self.share is not None and not 0 < self.share < 1:
            raise PlanError(
                f"share={self.share} of {self.unit} is not between 0 and 1: 0.5 removes half"
            )
        if self.left is not None and not 0 < self.left < float("inf"):
            raise PlanError(f"left={self.left} of {self.unit} must be positive")

    def share_of(self, whole: float) -> float:
        """The share to remove of a network that has `whole` of the unit."""
        if self.left is None:
            assert self.share is not None
            return self.share
        if self.left >= whole:
            left, has = (_shown(value, self.unit) for value in (self.left, whole))
            raise PlanError(
                f"left={left} of {self.unit}: the network has only {has}, so there is nothing to "
                "remove"
            )
        return 1 - self.left / whole


def _shown(amount: float, unit: str) -> str:
    if unit != "latency":
        return f"{amount:g}"
    return f"{amount:.3g} s" if amount >= 1 else f"{amount * 1e3:.3g} ms"


def in_percent(share: float) -> str:
    """What a number above 1 means as a share, for messages: `; 50 % is 0.5`."""
    return f"; {share:g} % is {share / 100:g}" if 1 < share < 100 else ""


def parse_target(text: str, unit: str = "filters") -> Target:
    """Read `macs=0.5`, `macs=2G`, `params=5M`, `latency=10ms`, or a share of `unit` alone."""
    name, equals, value = text.rpartition("=")
    name = name.strip() if equals else unit
    how = (
        f"write UNIT=SHARE with a share between 0 and 1 to remove, e.g. macs=0.5, or UNIT=AMOUNT "
        f"with what may be left, e.g. macs=2G, params=5M, latency=10ms; units: {', '.join(UNITS)}"
    )
    if name not in UNITS:
        raise PlanError(f"--target {text!r} is not a target: {how}")
    amount = _AMOUNT.fullmatch(value.strip())
    try:
        if amount is None:
            share = float(value)
            if not 0 < share < 1:
                raise PlanError(
                    f"--target {text!r}: {value} is not between 0 and 1{in_percent(share)}; {how}"
                )
            return Target(name, share=share)
        factors = _TIMES if name == "latency" else _SIZES
        return Target(name, left=float(amount[1]) * factors[amount[2].lower()])
    except (ValueError, KeyError) as error:
        raise PlanError(f"--target {text!r} is not a target: {how}") from error
