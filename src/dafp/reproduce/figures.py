"""The paper's figures as jobs: accuracy against r, λ and P over the epochs, filters left per layer.

The paper prints no numbers for these.
"""

from typing import Any

from .profiles import configure
from .tables import Figure, Item, TableRow

FIGURES = ("sensitivity", "dynamics", "architecture")
_RUNS = 3  # the paper does not say how many


def plot(name: str, profile: str) -> Item:
    """One of FIGURES with the configurations of a profile."""
    return {"sensitivity": _sensitivity, "dynamics": _dynamics, "architecture": _architecture}[
        name
    ](profile)


def _sensitivity(profile: str) -> Item:
    methods: tuple[str, ...]
    if profile == "paper":
        model, methods = "preresnet56", ("dafp", "slm")
        ratios: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
    else:
        model, methods = "vgg16", ("dafp", "slm", "l1-norm", "fpgm", "taylor")
        ratios = (0.3, 0.5, 0.7, 0.8)
    rows = tuple(
        _row(profile, model=model, data="cifar10", method=method, ratio=ratio)
        for method in methods
        for ratio in ratios
    )
    note = "The paper's curve is of ResNet-56; lite has VGG-16, and more methods."
    return Item("sensitivity", "Accuracy against the share removed", rows, _RUNS, note)


def _dynamics(profile: str) -> Item:
    # accuracy per epoch is measured on validation images, which the paper's settings do not have
    rows = tuple(
        _row(profile, model="vgg16", data="cifar100", method=method, ratio=0.3, val_share=0.1)
        for method in ("slm", "slm+da", "dafp")
    )
    note = (
        "VGG-16 at r = 0.3, as in the ablation. λ of slm and slm+da is fixed. P is the share at or "
        "below p = 0.01 of the maximum of its layer, for slm by |γ| alone; it steers neither of "
        "them. Accuracy of every epoch is that on the validation images."
    )
    return Item("dynamics", "λ, P and fine-tuning over the epochs", rows, _RUNS, note)


def _architecture(profile: str) -> Item:
    rows = tuple(
        _row(profile, model="vgg16", data="cifar100", method=method, ratio=0.4)
        for method in ("slm", "dafp")
    )
    note = "VGG-16 at r = 0.4; a layer without a column was emptied."
    return Item("architecture", "Filters left in every layer", rows, _RUNS, note)


def _row(profile: str, **values: Any) -> TableRow:
    config = configure(profile, **values)
    figures = tuple(
        Figure(name, "", None, config, stage)
        for name, stage in (("before_finetune", "pruned"), ("finetune", "final"))
    )
    return TableRow(f"{values['model']}/{values['method']}/{values['ratio']:g}", figures)
