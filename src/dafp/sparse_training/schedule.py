"""When how much of the target is due: the schedule of step='auto'."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SparsitySchedule:
    """Where a training stands between its first step and the last."""

    steps: int  # of the whole training
    step: int  # done so far

    @property
    def start(self) -> float:
        """Until now nothing is due."""
        return 0.1 * self.steps

    @property
    def arrival(self) -> float:
        """By now the target should be met; the rest of the time holds it."""
        return 0.5 * self.steps

    @property
    def rest(self) -> float:
        """From now on nothing of a dead channel moves any more."""
        return 0.85 * self.steps

    @property
    def stretch(self) -> float:
        """How far ahead it looks: a channel that is due then is pulled from now on."""
        return 0.1 * self.steps

    def due(self, step: float) -> float:
        """The share of the target that should be gone at a step: much at first, then less."""
        way = (step - self.start) / (self.arrival - self.start)
        return 1 - (1 - min(1.0, max(0.0, way))) ** 2

    def aim(self, target: float) -> float:
        """The sparsity that is due now."""
        return target * self.due(self.step)
