"""What `reconstruct` did to each consumer: a value that can be asked of its result."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import nn

from ..calibration.fitting import Fit
from ..errors import PlanError

_ATTRIBUTE = "_dafp_reconstruction"


@dataclass(frozen=True)
class RebuiltLayer:
    """One consumer; errors are mean squares on held-out images, summed over its outputs."""

    weight: str
    how: str  # "patches", "mixture", "mean" (only the mean), or "kept" (the old weights)
    damping: float
    error_before: float  # with the old weights
    error_after: float

    @classmethod
    def of(cls, weight: str, fits: Sequence[Fit]) -> "RebuiltLayer":
        """Summarise the fits of all weight groups of a layer."""
        most = max(fits, key=lambda one: one.error_before)
        return cls(
            weight,
            most.how,
            most.damping,
            sum(one.error_before for one in fits),
            sum(one.error_after for one in fits),
        )


@dataclass(frozen=True)
class Reconstruction:
    """What `reconstruct` did."""

    layers: tuple[RebuiltLayer, ...]
    skipped: Mapping[str, str]  # weight -> why it was not rebuilt
    images: int
    in_order: bool  # False: all layers at once, from the inputs that they had in the original
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        order = "in the order of the forward pass" if self.in_order else "all at once"
        lines = [f"{len(self.layers)} consumers rebuilt {order}, from {self.images} images"]
        for layer in self.layers:
            left = layer.error_after / max(layer.error_before, 1e-30)
            lines.append(f"  {layer.weight}: {left:.0%} of the error left ({layer.how})")
        lines += [f"  {weight}: not rebuilt: {why}" for weight, why in self.skipped.items()]
        return "\n".join([*lines, *self.notes])


def keep_report(model: nn.Module, report: Reconstruction) -> nn.Module:
    """Attach the report to the model that `reconstruct` returns."""
    vars(model)[_ATTRIBUTE] = report
    return model


def reconstruction_of(model: nn.Module) -> Reconstruction:
    """What `dafp.reconstruct` did to this model.

    Args:
        model: a result of `dafp.reconstruct`

    Returns:
        The consumers that were rebuilt, with their errors before and after; those that were not,
        with the reason.
    """
    report = vars(model).get(_ATTRIBUTE)
    if not isinstance(report, Reconstruction):
        raise PlanError("this model is not a result of dafp.reconstruct")
    return report
