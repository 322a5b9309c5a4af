"""What pruning must know of a YOLO network of ultralytics; imports nothing of ultralytics."""

import pickletools
import re
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import ModelError, TrainingError
from ..graph.plan import PruningPlan
from ..graph.slicing import selects
from ..pruning import plan_of

HEADS = (
    "Detect", "v10Detect", "Segment", "Segment26", "Pose", "Pose26", "OBB", "OBB26", "Classify",
)  # fmt: skip
_PLAN = "dafp_plan"  # attribute of a pruned network, also in its checkpoint: the plan as JSON
# the name of the first layer in the YAML of a pruned network: a trainer that rebuilds the network
# from YAML, at full width, stops here and shows it
_NOT_FROM_YAML = "this network is pruned: train it with dafp.integrations.ultralytics.YOLO"


def check_network(model: Any, source: str) -> None:
    """Raise unless this is a network, of a head whose channels dafp knows, that can be trained."""
    if not isinstance(model, nn.Module):
        raise ModelError(
            f"{source} is an exported model; give the .pt checkpoint that it was exported from"
        )
    layers = getattr(model, "model", None)
    head = type(layers[-1]).__name__ if isinstance(layers, nn.Sequential) else type(model).__name__
    if head not in HEADS:
        raise ModelError(
            f"{source} ends in the head {head!r}, which dafp.integrations.ultralytics does not "
            f"know; it knows {', '.join(HEADS)}. Try dafp.slim on the network itself"
        )
    if not any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        raise ModelError(
            f"{source} has no batch normalisation left: fuse() has folded it into the "
            "convolutions, and it cannot be trained. Load the checkpoint again"
        )


@contextmanager
def without_features(model: nn.Module) -> Iterator[None]:
    """Let a network not return the inputs of its head, whose channels would be kept as outputs."""
    handle = model.register_forward_hook(_drop_features)
    try:
        yield
    finally:
        handle.remove()


def _drop_features(module: nn.Module, args: Any, output: Any) -> Any:
    """Forward hook: the output without its entries "feats", of which only the size is used."""
    if isinstance(output, dict):
        return {k: _drop_features(module, args, v) for k, v in output.items() if k != "feats"}
    if isinstance(output, (list, tuple)):
        return type(output)(_drop_features(module, args, v) for v in output)
    return output


def finished(small: nn.Module) -> nn.Module:
    """Make the result of `prune` one that ultralytics saves, loads and trains."""
    if any(selects(module) for module in small.modules()):
        raise ModelError(
            "some layers of this network select channels of a residual stream, which an "
            'ultralytics checkpoint cannot hold; give residual="couple"'
        )
    module: Any
    for module in small.modules():  # C2f and its kind: export splits by an attribute, not by chunk
        if hasattr(module, "forward_split") and isinstance(vars(module).get("c"), int):
            module.c = module.cv1.conv.out_channels // 2
    vars(small)[_PLAN] = plan_of(small).to_json()
    # whoever loads the checkpoint need not have dafp
    for name in [name for name in vars(small) if name.startswith("_dafp")]:
        del vars(small)[name]
    hooks: dict[int, Any] = small._forward_hooks  # of without_features
    for number in [n for n, hook in hooks.items() if hook is _drop_features]:
        del hooks[number]
    config = deepcopy(vars(small)["yaml"])
    if config["backbone"][0][2] != _NOT_FROM_YAML:
        config["backbone"].insert(0, [-1, 1, _NOT_FROM_YAML, []])
    vars(small)["yaml"] = config
    return small


def pruned_plan(model: Any) -> PruningPlan | None:
    """The plan of a pruned network; None for any other."""
    text = vars(model).get(_PLAN) if isinstance(model, nn.Module) else None
    return None if text is None else PruningPlan.from_json(text)


def for_training(weights: Any, config: Any, classes: int) -> nn.Module | None:
    """A copy of a pruned network, for a trainer; None if the trainer is to build its own."""
    if pruned_plan(weights) is None:
        if isinstance(config, dict) and config["backbone"][0][2] == _NOT_FROM_YAML:
            raise TrainingError(
                "a pruned network trains from its own weights only; leave pretrained=True"
            )
        return None
    if weights.yaml["nc"] != classes:
        raise TrainingError(
            f"the pruned network has {weights.yaml['nc']} classes, the data {classes}; train the "
            "unpruned network on these data first, then prune it"
        )
    model: nn.Module = deepcopy(weights).float()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    return without_loss(model)


def without_loss(model: nn.Module) -> nn.Module:
    """The network without the loss that ultralytics stores in it, which holds sizes and data."""
    if hasattr(model, "criterion"):
        vars(model)["criterion"] = None
    return model


def version_in(path: Path) -> str | None:
    """The version of ultralytics that wrote a checkpoint, read without unpickling it."""
    try:
        with zipfile.ZipFile(path) as archive:
            name = next(n for n in archive.namelist() if n.endswith("/data.pkl"))
            found = ""
            for _, value, _ in pickletools.genops(archive.read(name)):
                if found == "version" and isinstance(value, str):
                    return value if re.fullmatch(r"\d+(\.\d+)+\w*", value) else None
                found = value if isinstance(value, str) else found
    except (OSError, StopIteration, ValueError, zipfile.BadZipFile):
        return None
    return None
