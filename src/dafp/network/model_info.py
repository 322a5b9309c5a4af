"""What a model file says about its model besides weights and plan: how to build and to feed it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from ..errors import FileError

_ATTRIBUTE = "_dafp_info"


@dataclass(frozen=True)
class ModelInfo:
    """What is known of a model; every entry may be empty."""

    builder: str = ""  # "vgg16", "timm:resnet18", "mynets:small"
    arguments: Mapping[str, Any] = field(default_factory=dict)  # of the builder: classes, width
    input: tuple[int, ...] = ()  # shape of one input, without the batch
    dtype: str = "float32"  # of the input
    mean: tuple[float, ...] = ()  # of pixels in [0, 1], subtracted
    std: tuple[float, ...] = ()  # divided by
    resize: int = 0  # short edge of an image before the central crop; 0: that of the input
    classes: tuple[str, ...] = ()  # their names
    data: str = ""  # name of the data set it was trained on
    history: tuple[Mapping[str, Any], ...] = ()  # what was done to it, the oldest first

    def to_json(self) -> dict[str, Any]:
        """The entries that are not empty, as JSON values."""
        empty = ModelInfo()
        return {
            f.name: _plain(getattr(self, f.name))
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != getattr(empty, f.name)
        }


def info_of(model: nn.Module) -> ModelInfo:
    """What is known of a model; a built-in network knows its own name."""
    info: ModelInfo = vars(model).get(_ATTRIBUTE, ModelInfo())
    own = vars(model).get("_dafp_name")
    if own and not info.builder:
        arguments = {key: value for key, value in own.items() if key != "name"}
        info = dataclasses.replace(info, builder=own["name"], arguments=arguments)
    return info


def with_info(model: nn.Module, info: ModelInfo) -> nn.Module:
    """Attach what is known to a model, in place."""
    vars(model)[_ATTRIBUTE] = info
    return model


def info_from_json(value: Any) -> ModelInfo:
    """Read the result of `to_json`; FileError if it is anything else."""
    if not isinstance(value, dict):
        raise FileError(f"what the file says about its model is not a JSON object: {value!r}")
    known = {f.name: f for f in dataclasses.fields(ModelInfo)}
    checked: dict[str, Any] = {}
    for name, entry in value.items():
        if name not in known:
            continue  # written by a newer version
        if not _CHECKS[name](entry):
            raise FileError(f"what the file says about its model is damaged: {name}={entry!r}")
        checked[name] = tuple(entry) if isinstance(entry, list) else entry
    return ModelInfo(**checked)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _is_list_of(kinds: type | tuple[type, ...]) -> Any:
    return lambda v: (
        isinstance(v, list)
        and all(isinstance(item, kinds) and not isinstance(item, bool) for item in v)
    )


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_CHECKS: dict[str, Any] = {
    "builder": _is_text,
    "arguments": lambda v: isinstance(v, dict),
    "input": lambda v: _is_list_of(int)(v) and all(size > 0 for size in v),
    "dtype": _is_text,
    "mean": _is_list_of((int, float)),
    "std": lambda v: _is_list_of((int, float))(v) and all(item > 0 for item in v),
    "resize": lambda v: isinstance(v, int) and not isinstance(v, bool) and v >= 0,
    "classes": _is_list_of(str),
    "data": _is_text,
    "history": _is_list_of(dict),
}
