"""The schedule of step="auto": how much sparsity is due at each step."""

from dataclasses import dataclass

# shares of all training steps; benchmarks/heuristics.py measures what these constants matter
START = 0.1  # nothing is due before
ARRIVAL = 0.5  # the target is due
REST = 0.85  # β of dead channels is held at zero from here on
STRETCH = 0.1  # a channel that is due within this time is penalised


@dataclass(frozen=True)
class SparsitySchedule:
    """How much sparsity is due, from the first training step to the last."""

    steps: int  # of the whole training
    step: int  # done so far

    @property
    def start(self) -> float:
        """The step before which nothing is due."""
        return START * self.steps

    @property
    def arrival(self) -> float:
        """The step at which the target is due; afterwards it is held."""
        return ARRIVAL * self.steps

    @property
    def rest(self) -> float:
        """The step after which β of dead channels that the control has chosen is held at zero."""
        return REST * self.steps

    @property
    def stretch(self) -> float:
        """Number of steps to look ahead: a channel that is due within them is penalised."""
        return STRETCH * self.steps

    def due(self, step: float) -> float:
        """The share of the target that is due at a step: it grows fast at first, then slowly."""
        progress = (step - self.start) / (self.arrival - self.start)
        return 1 - (1 - min(1.0, max(0.0, progress))) ** 2

    def aim(self, target: float) -> float:
        """The sparsity that is due now, for this target."""
        return target * self.due(self.step)
