"""Time several functions alternately, with confidence intervals."""

import itertools
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ..errors import BenchError

Run = Callable[[], object]

LEAST_SAMPLE = 2e-3  # seconds; faster functions are repeated within one sample
ROUNDS = (9, 200)  # at least, at most
RESAMPLES = 2000
SESSIONS = 5
STUDENT = (12.71, 4.30, 3.18, 2.78, 2.57)  # t for intervals of 95 % from 2 to 6 sessions

# outside these limits a measurement is unreliable: the machine was busy
LEAST_SHARE = 0.9  # of the wall time of most samples must be CPU time of this thread
LEAST_WHOLE = 0.5  # of all the wall time: after others, caches are cold
MOST_DRIFT = 0.1  # between the medians of the first and the second half
MOST_SPREAD = 0.25  # between the quartiles, relative to the median


@dataclass(frozen=True, repr=False)
class Timing:
    """Samples of one function, measured alternately with others."""

    samples: tuple[float, ...]  # seconds of wall time for one run
    shares: tuple[float, ...]  # CPU time of this thread, as a share of each sample
    sessions: tuple[int, ...] = ()  # samples of each session, if there were several

    def __add__(self, more: "Timing") -> "Timing":
        """The samples of both, as of two sessions."""
        return Timing(
            self.samples + more.samples,
            self.shares + more.shares,
            tuple(n for t in (self, more) for n in t.sessions or (len(t.samples),)),
        )

    def __repr__(self) -> str:
        low, high = (f"{seconds * 1e3:.3g}" for seconds in self.quartiles)
        return (
            f"Timing({self.median * 1e3:.3g} ms, quartiles {low} to {high} ms, "
            f"{len(self.samples)} samples)"
        )

    @property
    def median(self) -> float:
        return quantile(self.samples, 0.5)

    @property
    def quartiles(self) -> tuple[float, float]:
        return quantile(self.samples, 0.25), quantile(self.samples, 0.75)

    @property
    def doubt(self) -> str:
        """Why the measurement is unreliable; empty if it is reliable."""
        share = quantile(self.shares, 0.5)
        mine = sum(one * wall for one, wall in zip(self.shares, self.samples, strict=True))
        whole = mine / sum(self.samples)
        if share < LEAST_SHARE or whole < LEAST_WHOLE:
            return f"others used the CPU: {min(share, whole):.0%} of the time was ours"
        half = len(self.samples) // 2
        first, second = (quantile(s, 0.5) for s in (self.samples[:half], self.samples[half:]))
        if abs(first / second - 1) > MOST_DRIFT:
            return f"the time drifted from {first * 1e3:.3g} to {second * 1e3:.3g} ms"
        low, high = self.quartiles
        if (high - low) / self.median > MOST_SPREAD:
            return f"half of the runs lie between {low * 1e3:.3g} and {high * 1e3:.3g} ms"
        return ""


@dataclass(frozen=True)
class Ratio:
    """A speed-up with its 95 % confidence interval."""

    value: float
    low: float
    high: float


def check_setting(batches: Sequence[int], threads: Sequence[int], seconds: float) -> None:
    """Raise BenchError unless batch sizes, threads and seconds are positive."""
    for name, numbers in (("batch", batches), ("threads", threads)):
        for number in numbers:
            if not isinstance(number, int) or number < 1:
                raise BenchError(f"{name}={number} cannot be measured; give a whole number from 1")
    if not 0 < seconds < math.inf:
        raise BenchError(f"seconds={seconds} is too short to measure; give more, e.g. 1.0")


def by_turns(runs: Mapping[str, Run], seconds: float = 2.0) -> dict[str, Timing]:
    """Time each function once per round, in changing order, for about `seconds` each.

    Each is warmed up first. A temporary disturbance of the machine affects all of them alike.
    """
    once = {name: _warm_up(run) for name, run in runs.items()}
    repeats = {name: max(1, math.ceil(LEAST_SAMPLE / t)) for name, t in once.items()}
    whole = sum(repeats[name] * t for name, t in once.items())
    rounds = round(min(max(seconds * len(runs) / whole, ROUNDS[0]), ROUNDS[1]))
    samples: dict[str, list[float]] = {name: [] for name in runs}
    shares: dict[str, list[float]] = {name: [] for name in runs}
    names = list(runs)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            wall, cpu = sample(runs[name], repeats[name])
            samples[name].append(wall / repeats[name])
            shares[name].append(min(1.0, cpu / wall))
    return {name: Timing(tuple(samples[name]), tuple(shares[name])) for name in runs}


def in_sessions(
    start: Callable[[], Mapping[str, Run]], seconds: float = 2.0, sessions: int = SESSIONS
) -> dict[str, Timing]:
    """Like `by_turns`, with functions that `start` makes anew for every session.

    Where the tensors of a model lie in memory changes its time by some percent; only several
    sessions show by how much. Slow models, which take longer than asked, get fewer sessions.
    """
    found: dict[str, Timing] = {}
    for _ in range(sessions):
        for name, timing in by_turns(start(), seconds / sessions).items():
            found[name] = found[name] + timing if name in found else timing
        # by the median: on a busy machine the time that passes says nothing of the models
        spent = [len(t.samples) * max(t.median, LEAST_SAMPLE) for t in found.values()]
        if sum(spent) > seconds * len(found):
            break
    return found


def ratio(base: Timing, other: Timing) -> Ratio:
    """Speed-up of `other` over `base`, with a confidence interval.

    A temporary slowdown affects both measurements of a round, but not their ratio. The interval
    holds that of a bootstrap over the rounds, and that of the sessions, if there were several.
    """
    rounds = torch.tensor(_rounds(base, other), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    picks = torch.randint(len(rounds), (RESAMPLES, len(rounds)), generator=generator)
    medians = rounds[picks].quantile(0.5, dim=1)
    ends = torch.quantile(medians, torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    value, factor = median_ratio(base, other), _between_sessions(base, other)
    return Ratio(value, min(ends[0], value / factor), max(ends[1], value * factor))


def _between_sessions(base: Timing, other: Timing) -> float:
    """The factor by which sessions let the speed-up vary, with 95 % confidence."""
    if len(base.sessions) < 2:
        return 1.0
    rounds = iter(_rounds(base, other))
    each = [tuple(itertools.islice(rounds, size)) for size in base.sessions]
    logs = [math.log(quantile(session, 0.5)) for session in each]
    t = STUDENT[min(len(logs) - 2, len(STUDENT) - 1)]
    return math.exp(t * statistics.stdev(logs) / math.sqrt(len(logs)))


def median_ratio(base: Timing, other: Timing) -> float:
    """The median over rounds of base / other."""
    return quantile(_rounds(base, other), 0.5)


def quantile(values: tuple[float, ...], at: float) -> float:
    return float(torch.tensor(values, dtype=torch.float64).quantile(at))


def _rounds(base: Timing, other: Timing) -> tuple[float, ...]:
    return tuple(a / b for a, b in zip(base.samples, other.samples, strict=True))


def _warm_up(run: Run) -> float:
    """Warm up for three to 100 runs, until 50 ms have passed; return the seconds of the fastest."""
    spent, quickest, count = 0.0, math.inf, 0
    while count < 3 or (spent < 0.05 and count < 100):
        wall, _ = sample(run, 1)
        spent, quickest, count = spent + wall, min(quickest, wall), count + 1
    return max(quickest, 1e-7)


def sample(run: Run, repeats: int) -> tuple[float, float]:
    """Seconds of wall time and of CPU time for `repeats` runs."""
    cpu, wall = time.thread_time(), time.perf_counter()
    for _ in range(repeats):
        run()
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    return max(wall, 1e-9), cpu
