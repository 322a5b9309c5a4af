"""The options of `dafp eval`."""

from .shared import (
    AsJson,
    Builder,
    ConfigFile,
    Data,
    ModelOrSaved,
    PresetIfAny,
    Root,
    Settings,
    SkipUnreadable,
    Trust,
    Weights,
    Width,
)


def evaluate(
    model: ModelOrSaved,
    weights: Weights = None,
    width: Width = 1.0,
    data: Data = None,
    root: Root = None,
    skip_unreadable: SkipUnreadable = False,
    preset: PresetIfAny = None,
    config: ConfigFile = None,
    settings: Settings = None,
    builder: Builder = None,
    trust: Trust = False,
    as_json: AsJson = False,
) -> None:
    """Accuracy, cost and latency of a trained model on the test images.

    A file that dafp wrote names its network and its data set, and a run knows its own images.

    Examples:

    dafp eval runs/default

    dafp eval small.safetensors --data folder:photos

    dafp eval timm:resnet18 --weights r18.pth --data folder:photos
    """
