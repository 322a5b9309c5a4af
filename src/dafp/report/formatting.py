"""How names and numbers are shown: stages, percent, counts, seconds, changes between numbers."""

GAP = "–"  # for a number that is not known


def stage(name: str) -> str:
    """The name of a stage as it is shown: "finetuned-1" -> "fine-tuned-1"."""
    return name.replace("finetune", "fine-tune")


def percent(share: float | None, digits: int = 1) -> str:
    """0.972 -> "97.2 %"."""
    return GAP if share is None else f"{_minus(share * 100, digits)} %"


def points(new: float | None, old: float | None) -> str:
    """The change of a share in percentage points: 0.97 after 0.975 -> "−0.5"."""
    if new is None or old is None:
        return GAP
    return _signed((new - old) * 100, 1)


def change(new: float | None, old: float | None) -> str:
    """The change of an amount: 40 after 100 -> "−60 %"."""
    if new is None or not old:
        return GAP
    share = (new - old) / old * 100
    return f"{_signed(share, 1 if 0 < abs(share) < 10 else 0)} %"


def speedup(new: float | None, old: float | None) -> str:
    """How many times faster: 1 ms after 2 ms -> "2.0×"."""
    return GAP if not new or old is None else f"{old / new:.{2 if old / new < 1.995 else 1}f}×"


def count(value: float | None) -> str:
    """A count in full: 921000 -> "921,000"."""
    return GAP if value is None else f"{value:,.0f}"


def short(value: float | None) -> str:
    """A count in short: 19800000 -> "19.8 M"."""
    if value is None:
        return GAP
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size * 0.9995:
            return f"{value / min(size, 1e3 if letter == 'k' else size):.3g} {letter}"
    return f"{value:,.0f}"


def seconds(value: float | None) -> str:
    """0.0021 -> "2.10 ms", 75 -> "1 min 15 s"."""
    if value is None:
        return GAP
    if value < 1e-3:
        return f"{value * 1e6:.3g} µs"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 60:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def number(value: float | None, digits: int = 4) -> str:
    """Any other number, to some digits: 0.012345 -> "0.01234"."""
    return GAP if value is None else f"{value:.{digits}g}".replace("-", "−", 1 if value < 0 else 0)


def _minus(value: float, digits: int) -> str:
    text = f"{value:.{digits}f}"
    zero = not text.strip("-0.")
    return text.lstrip("-") if zero else text.replace("-", "−")


def _signed(value: float, digits: int) -> str:
    text = _minus(value, digits)
    if not text.strip("0."):
        return f"±{text}"
    return text if text.startswith("−") else f"+{text}"
