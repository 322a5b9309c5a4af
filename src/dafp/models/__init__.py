"""Networks by name: our own, those of timm and torchvision, and functions of yours.

vgg11 vgg13 vgg16 vgg19           CIFAR, one linear layer
preresnet20 … preresnet1001       CIFAR, any depth 9n+2
preresnet20-slm …                 the same; projection shortcuts as in the code of Network Slimming
resnet20 resnet56 resnet110       CIFAR, basic blocks, any depth 6n+2
vgg11-imagenet, preresnet50-imagenet, preresnet101-imagenet
timm:NAME   torchvision:NAME      the networks of these libraries (pip install "dafp[zoo]")
package.module:function           a function of yours that returns an nn.Module
"""

import importlib
import re
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from . import preresnet, resnet, vgg
from .preresnet import IMAGENET_STAGES, PreResNet
from .resnet import ResNet
from .vgg import LAYOUTS, VGG, ImageNetVGG

__all__ = [
    "VGG",
    "ImageNetVGG",
    "PreResNet",
    "ResNet",
    "build",
    "default_example",
    "is_ours",
    "is_registered",
    "reinitialise",
]

_INITIALISE: tuple[tuple[type[nn.Module], Any], ...] = (
    (VGG, vgg.initialise),
    (ImageNetVGG, vgg.initialise),
    (PreResNet, preresnet.initialise),
    (ResNet, resnet.initialise),
)
_ENTRY = re.compile(r"[A-Za-z0-9_]+(\.[A-Za-z0-9_]+)?")  # no path, no address
_OURS = re.compile(r"(vgg|preresnet|resnet)(\d+)(-imagenet|-slm)?")


def build(
    name: str, *, classes: int | None = None, width: float = 1.0, channels: int | None = None
) -> nn.Module:
    """Make a network by name, with fresh weights.

    Args:
        name: "vgg16", "preresnet56", "resnet20", "timm:NAME", "torchvision:NAME" or
            "package.module:function"; `dafp.models` lists all of them
        classes: number of outputs; by default 10, or 1000 for ImageNet, or the library's default
        width: factor for the number of channels, for built-in networks only
        channels: number of input channels, for networks of timm; by default 3

    Returns:
        The network, in train mode.

    Examples:
        >>> model = dafp.models.build("vgg11", classes=5, width=0.25)
        >>> model.classifier
        Linear(in_features=128, out_features=5, bias=True)
    """
    if not 0 < width < float("inf"):
        raise ModelError(f"width={width} must be a positive number, e.g. 0.25")
    if classes is not None and classes < 1:
        raise ModelError(f"classes={classes} must be at least 1")
    if is_ours(name):
        return _build_ours(name, classes, width)
    library, entry = _library_and_entry(name)
    if width != 1.0:
        raise ModelError(f"width={width} is for built-in models; {name!r} has its own width")
    options = {} if classes is None else {"num_classes": classes}
    if channels is not None:
        if library != "timm":
            raise ModelError(f"channels={channels} is for networks of timm; {name!r} has its own")
        options["in_chans"] = channels
    return _build_theirs(library, entry, options)


def check_name(name: str) -> None:
    """Raise ModelError if a network cannot be found by its name; nothing is built."""
    if not is_ours(name):
        _function(*_library_and_entry(name))


def _library_and_entry(name: str) -> tuple[str, str]:
    library, _, entry = name.partition(":")
    if not entry:
        raise ModelError(
            f"no model {name!r}; ours are vgg11/13/16/19, preresnet20 (any 9n+2), resnet20 "
            "(any 6n+2), vgg11-imagenet, preresnet50-imagenet, preresnet101-imagenet; others "
            "are timm:NAME, torchvision:NAME or package.module:function"
        )
    return library, entry


def is_ours(name: str) -> bool:
    return _OURS.fullmatch(name) is not None


def is_registered(name: str) -> bool:
    """Whether this is a built-in network, or one that timm or torchvision register.

    Building one of these opens no file and runs no code but that of these libraries.
    """
    if is_ours(name):
        return True
    library, _, entry = name.partition(":")
    if library not in ("timm", "torchvision") or not _ENTRY.fullmatch(entry):
        return False
    try:
        if library == "timm":
            return bool(importlib.import_module("timm").is_model(entry))
        return entry in importlib.import_module("torchvision.models").list_models()
    except Exception as error:
        raise ModelError(f"cannot import {library!r}: {error}.{_hint(library)}") from error


def default_example(name: str, model: nn.Module) -> Tensor:
    """A batch of one image of the size the network is made for."""
    if is_ours(name):
        size = 224 if name.endswith("-imagenet") else 32
        shape: tuple[int, ...] = (3, size, size)
    else:
        config = getattr(model, "default_cfg", None) or {}
        shape = tuple(config.get("input_size", (3, 224, 224)))
    return torch.randn(1, *shape, generator=torch.Generator().manual_seed(0))


def reinitialise(model: nn.Module) -> None:
    """Draw new weights and reset statistics, by the rules that the network was built with."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    for kind, initialise in _INITIALISE:
        if isinstance(model, kind):
            initialise(model)


def _build_ours(name: str, classes: int | None, width: float) -> nn.Module:
    match = _OURS.fullmatch(name)
    assert match is not None
    family, depth, imagenet = match[1], int(match[2]), match[3] == "-imagenet"
    slm = match[3] == "-slm"
    number = classes or (1000 if imagenet else 10)
    if family == "vgg" and depth in LAYOUTS and not slm:
        kind = ImageNetVGG if imagenet else VGG
        return kind(depth, classes=number, width=width)
    if family == "preresnet" and (depth in IMAGENET_STAGES if imagenet else depth % 9 == 2 < depth):
        return PreResNet(depth, classes=number, width=width, imagenet=imagenet, projects_input=slm)
    if family == "resnet" and depth % 6 == 2 and depth > 2 and not match[3]:
        return ResNet(depth, classes=number, width=width)
    raise ModelError(
        f"no model {name!r}: VGG has depth 11, 13, 16 or 19; PreResNet 9n+2 (ImageNet: 50, 101); "
        "ResNet 6n+2"
    )


def _build_theirs(library: str, entry: str, options: dict[str, Any]) -> nn.Module:
    make = _function(library, entry)
    try:
        model = make(**options)
    except Exception as error:
        raise ModelError(
            f"{library}:{entry}, called with {_listed(options)}, raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if not isinstance(model, nn.Module):
        raise ModelError(f"{library}:{entry} gave a {type(model).__name__}, not an nn.Module")
    return model


def _function(library: str, entry: str) -> Callable[..., Any]:
    """The function that builds the network."""
    try:
        if library == "timm":
            return partial(importlib.import_module("timm").create_model, entry)
        if library == "torchvision":
            models = importlib.import_module("torchvision.models")
            return partial(models.get_model, entry, weights=None)
        module = importlib.import_module(library)
    except ImportError as error:
        raise ModelError(
            f"cannot import {library!r} for model {entry!r}: {error}.{_hint(library)}"
        ) from error
    except Exception as error:
        raise ModelError(
            f"cannot import {library!r} for model {entry!r}: it raised {type(error).__name__}: "
            f"{error}.{_hint(library)}"
        ) from error
    if not hasattr(module, entry):
        raise ModelError(f"module {library!r} has no function {entry!r}")
    function: Callable[..., Any] = getattr(module, entry)
    return function


def _hint(library: str) -> str:
    if library not in ("timm", "torchvision"):
        return ""
    return (
        ' Try: pip install "dafp[zoo]". If it is installed, its version must match that of torch: '
        "torchvision and torch are released in pairs, and a CPU build of one needs a CPU build of "
        "the other"
    )


def _listed(options: dict[str, Any]) -> str:
    return ", ".join(f"{key}={value!r}" for key, value in options.items()) or "no arguments"
