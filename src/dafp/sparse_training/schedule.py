"""The schedule of step="auto": how much sparsity is due at each step."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SparsitySchedule:
    """How much sparsity is due, from the first training step to the last."""

    steps: int  # of the whole training
    step: int  # done so far

    @property
    def start(self) -> float:
        """The step before which nothing is due."""
        return 0.1 * self.steps

    @property
    def arrival(self) -> float:
        """The step at which the target is due; afterwards it is held."""
        return 0.5 * self.steps

    @property
    def rest(self) -> float:
        """The step after which β of dead channels that the control has chosen is held at zero."""
        return 0.85 * self.steps

    @property
    def stretch(self) -> float:
        """Number of steps to look ahead: a channel that is due within them is penalised."""
        return 0.1 * self.steps

    def due(self, step: float) -> float:
        """The share of the target that is due at a step: it grows fast at first, then slowly."""
        progress = (step - self.start) / (self.arrival - self.start)
        return 1 - (1 - min(1.0, max(0.0, progress))) ** 2

    def aim(self, target: float) -> float:
        """The sparsity that is due now, for this target."""
        return target * self.due(self.step)
