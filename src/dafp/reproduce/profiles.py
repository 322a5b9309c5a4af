"""The configuration of a row of the paper: at the paper's settings, or at a smaller scale."""

from typing import Any

from ..errors import TrainingError
from ..methods.schedules import own_schedule
from ..training.config import PRESETS, Config, Schedule

PROFILES = {
    "paper": (
        "The paper's settings: full networks, all training images, its schedules; dafp by "
        "Algorithm 1 with Δ = 1e-5 and p = 0.01; slm with the λ and the falling learning rate of "
        "its released code."
    ),
    "lite": (
        "A smaller scale: always CIFAR-10, 5,000 of its training images (500 of them for "
        "validation), VGG at a quarter of its width, residual networks of depth 20, 15 epochs of "
        "baseline or sparse training and 10 of fine-tuning (sfp, asfp, fpgm: 25, none); dafp "
        "steers λ by step=auto. The paper's figures are for another setting: compare "
        "orders, not values."
    ),
}

# these methods use the λ of their released code, not the paper's Δ
_OWN_PENALTY = ("slm", "slm+da", "slm+da+local")
# the paper copied the numbers of these methods from their own papers: 200 epochs, batches of 128,
# lr 0.1 (times 0.2 after 60, 120 and 160 epochs), weight decay 5e-4
_COPIED = ("sfp", "asfp", "fpgm")
_LONG = Schedule(200, 0.1, (0.3, 0.6, 0.8), 0.2)
# the originals keep the constant output of a zeroed channel, or absorb it into the next BN
_KEEP_CONSTANT = (*_COPIED, "bn-ista")


def configure(
    profile: str, *, model: str, data: str, method: str, ratio: float, **more: Any
) -> Config:
    """The configuration of a row, for seed 0."""
    if profile not in PROFILES:
        raise TrainingError(f"there is no profile {profile!r}; choose {' or '.join(PROFILES)}")
    name = {"slm+da+auto": "dafp", "bn-ista-v1": "bn-ista", "bn-ista-v2": "bn-ista"}.get(
        method, method
    )
    values = {"method": name, "target": ratio, "compensate": name in _KEEP_CONSTANT}
    build = _paper if profile == "paper" else _lite
    config = Config(**build(model, data, name) | values | more)
    if profile == "paper" and name in _COPIED:
        return config  # already has the schedule of their papers
    return own_schedule(config)


def _paper(model: str, data: str, method: str) -> dict[str, Any]:
    values: dict[str, Any] = {**PRESETS[data], "model": model, "val_share": 0.0}
    if data == "imagenet":
        # the figures of ResNet-50 and -101 are of post-activation networks
        ours = model.startswith(("vgg", "preresnet"))
        values["model"] = f"{model}-imagenet" if ours else f"torchvision:{model}"
    if method in _OWN_PENALTY:
        values["step"] = "auto"
    if method in _COPIED and model.startswith("resnet"):
        values |= {"batch_size": 128, "weight_decay": 5e-4}
        values |= {"baseline": _LONG, "sparse": _LONG, "finetune": _LONG}
    return values


def _lite(model: str, data: str, method: str) -> dict[str, Any]:
    family = model.rstrip("0123456789")
    network = (
        {"model": model, "width": 0.25}
        if family == "vgg"
        else {"model": f"{family}20", "width": 1.0}
    )
    return {
        **network,
        "data": "cifar10",
        "images": 5000,
        "batch_size": 64,
        "step": "auto",
        "baseline": Schedule(15),
        "sparse": Schedule(15, 0.1, ()),
        "finetune": Schedule(10),
    }
