"""The configuration of a run: a frozen dataclass made from a preset, a TOML file and options."""

import dataclasses
import difflib
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import TrainingError
from ..models import is_ours
from ..storage.toml import toml_text
from .config_checks import problems_of

# Settings that were added after results had been stored, each with the value of earlier runs:
# {"new_setting": value, "sparse.new_setting": value}. Stored configurations lack these keys.
INTRODUCED: dict[str, Any] = {
    "left": 0.0,
    "move_p": True,
    "rule": "own",
    "round_to": 0,
    "runtime": "eager",
    "latency_batch": 1,
    "latency_threads": 1,
    "min_channels": 0,
    "size": 0,
    "resize": 0,
    "flip": True,
    "crop": True,
    "mean": (),
    "std": (),
    "test_share": 0.2,
    "skip_unreadable": False,
    **{f"{stage}.shape": "steps" for stage in ("baseline", "sparse", "finetune")},
    **{f"{stage}.warmup": 0.0 for stage in ("baseline", "sparse", "finetune")},
}


@dataclass(frozen=True)
class Schedule:
    """Epochs and learning rate of one stage."""

    epochs: int  # how often all training images are used
    lr: float = 0.1  # learning rate at the start
    milestones: tuple[float, ...] = (0.5, 0.75)  # shares of the epochs after which lr decays
    decay: float = 0.1  # factor of lr at every milestone
    shape: str = "steps"  # or "cosine": from lr to 0, step by step; milestones have no effect
    warmup: float = 0.0  # share of the steps in which lr rises from 0, with shape="cosine"


@dataclass(frozen=True)
class Config:
    """All settings of a run. The defaults are those of `dafp run` on the embedded data."""

    model: str = "vgg16"  # a built-in name, timm:NAME, torchvision:NAME, package.module:function
    width: float = 0.25  # multiplier of the channels, for built-in networks
    weights: str = ""  # file to start from, "" for fresh weights
    data: str = "digits"  # digits, cifar10, cifar100, svhn, folder or imagenet
    root: str = "data"  # its directory
    images: int = 0  # training images to use, 0 for all
    val_share: float = 0.1  # of the training images, held out for validation
    size: int = 0  # of own images (data=folder): edge of the input; 0: 224
    resize: int = 0  # their short edge before the crop; 0: 8/7 of the size
    flip: bool = True  # mirror them at random in training
    crop: bool = True  # crop them at random places in training; false: from the centre
    mean: tuple[float, ...] = ()  # of their pixels in [0, 1]; empty: measured
    std: tuple[float, ...] = ()  # the standard deviation, likewise
    test_share: float = 0.2  # of each class, if the directory has no test images of its own
    skip_unreadable: bool = False  # leave out files that cannot be decoded
    batch_size: int = 32  # over all processes
    seed: int = 0  # of everything random
    method: str = "dafp"  # how to prune; docs/methods describes each
    target: float = 0.5  # share to remove
    unit: str = "filters"  # of target and left: filters, params, macs or latency
    left: float = 0.0  # how much of the unit may be left (latency: in seconds); 0: use target
    runtime: str = "eager"  # unit="latency": where it is measured, eager or onnx
    latency_batch: int = 1  # unit="latency": images of a batch
    latency_threads: int = 1  # unit="latency": threads
    p: float = 0.01  # threshold of pruning, as a share of the best score of a layer
    move_p: bool = True  # dafp: prune at the p that meets the target; false: at p, as the paper
    rule: str = "own"  # that of the method; or local_threshold, global_ranking, uniform
    round_to: int | str = 0  # widths are its multiples; "auto": 16 to 2; 0: 1, for latency "auto"
    min_channels: int = 0  # that every layer keeps; 0: one (slm: none, as in its paper)
    step: float | str = "auto"  # of λ: "auto", or the Δ of Algorithm 1
    criterion: str = "dependency_aware"  # how channels are scored
    residual: str = "keep"  # residual streams: "keep" them whole, or "couple" to prune them
    keep: tuple[str, ...] = ()  # layers (or patterns) not to prune
    compensate: bool = True  # add the mean of removed channels to the bias of their consumers
    repair: bool = False  # rebuild the consumers of removed channels with dafp.reconstruct
    recalibrate: bool = False  # estimate BN statistics again after pruning, on training images
    steps: int = 1  # prune in this many equal steps, each followed by its share of fine-tuning
    after: str = "finetune"  # or "scratch-E", "scratch-B": train from scratch, equal epochs or cost
    distill: float = 0.0  # share of the distillation term in the fine-tuning loss
    temperature: float = 4.0  # of distillation
    teacher: str = ""  # of dafp finetune: its file; a run takes the network before pruning
    optimizer: str = "sgd"  # or "adamw"
    momentum: float = 0.9  # of sgd
    weight_decay: float = 1e-4  # L2 penalty of all weights
    precision: str = "fp32"  # or "bf16", "fp16"
    channels_last: bool = True  # memory format
    threads: int = 0  # 0: as torch decides
    tracker: str = ""  # or "tensorboard"
    baseline: Schedule = field(default_factory=lambda: Schedule(20, 0.05))
    sparse: Schedule = field(default_factory=lambda: Schedule(20, 0.05, ()))
    finetune: Schedule = field(default_factory=lambda: Schedule(20, 0.05))

    def __post_init__(self) -> None:
        problems = list(problems_of(self))
        if problems:
            raise TrainingError("this configuration cannot run: " + "; ".join(problems))


_PAPER: dict[str, Any] = {
    "width": 1.0,
    "batch_size": 64,
    "step": 1e-5,
    "move_p": False,
    "compensate": False,
    "baseline": Schedule(160),
    "sparse": Schedule(160, 0.1, ()),
    "finetune": Schedule(160),
}
_CIFAR_LITE: dict[str, Any] = {
    "data": "cifar10",
    "images": 10000,
    "batch_size": 64,
    "baseline": Schedule(20),
    "sparse": Schedule(20, 0.1, ()),
    "finetune": Schedule(20),
}
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {},
    "cifar10-lite": _CIFAR_LITE,
    "cifar10": {**_PAPER, "data": "cifar10"},
    "cifar100": {**_PAPER, "data": "cifar100"},
    "svhn": {
        **_PAPER,
        "data": "svhn",
        "baseline": Schedule(40),
        "sparse": Schedule(40, 0.1, ()),
        "finetune": Schedule(40),
    },
    "imagenet": {
        **_PAPER,
        "data": "imagenet",
        "model": "preresnet50-imagenet",
        "batch_size": 256,
        "precision": "fp16",
        "baseline": Schedule(100, 0.1, (0.3, 0.6, 0.9)),
        "sparse": Schedule(40, 0.1, ()),
        "finetune": Schedule(100, 0.1, (0.3, 0.6, 0.9)),
    },
}


def make_config(
    preset: str = "digits", file: Path | None = None, settings: list[str] | None = None
) -> Config:
    """The preset, overridden by a TOML file, and then by `key=value` settings."""
    if preset not in PRESETS:
        raise TrainingError(f"there is no preset {preset!r}; choose one of {', '.join(PRESETS)}")
    config, given = Config(**PRESETS[preset]), read_settings(settings or [])
    from_file = {} if file is None else read_toml(file)
    config = changed(changed(config, from_file, str(file)), given, "--set")
    if not is_ours(config.model) and "width" not in from_file | given:
        return dataclasses.replace(config, width=1.0)  # only built-in networks take a width
    return config


def read_settings(settings: list[str]) -> dict[str, Any]:
    """Parse `key=value` texts: `sparse.epochs=40` becomes {"sparse": {"epochs": 40}}."""
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise TrainingError(f"--set {setting!r}: write key=value, e.g. sparse.epochs=40")
        _put(values, key.strip(), _parse(text.strip()))
    return values


def changed(config: Config, values: dict[str, Any], source: str) -> Config:
    """A configuration with some values replaced; unknown names and wrong types are refused."""
    new: dict[str, Any] = {}
    for key, value in values.items():
        _check_known(key, config, source)
        old = getattr(config, key)
        if isinstance(old, Schedule):
            if not isinstance(value, dict):
                raise TrainingError(f"{source}: {key!r} is a table: {key}.epochs, {key}.lr, …")
            for inner in value:
                _check_known(inner, old, source, f"{key}.")
            typed = {k: _typed(v, getattr(old, k), f"{key}.{k}", source) for k, v in value.items()}
            new[key] = dataclasses.replace(old, **typed)
        else:
            new[key] = _typed(value, old, key, source)
    return dataclasses.replace(config, **new)


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TrainingError(f"there is no configuration {path}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TrainingError(f"{path} cannot be read as TOML: {error}") from error


def to_toml(config: Config) -> str:
    """The configuration as TOML text; reading it back gives an equal configuration."""
    return toml_text(dataclasses.asdict(config))


def differences(old: Config, new: Config) -> list[str]:
    """`key: old → new` for every setting in which two configurations differ."""
    found = []
    for key, value in dataclasses.asdict(old).items():
        other = dataclasses.asdict(new)[key]
        if isinstance(value, dict):
            found += [f"{key}.{k}: {v} → {other[k]}" for k, v in value.items() if v != other[k]]
        elif value != other:
            found.append(f"{key}: {value!r} → {other!r}")
    return found


_NUMBER, _WHOLE = "number or 'auto'", "whole number or 'auto'"
_AUTO = {"step": _NUMBER, "round_to": _WHOLE}


def _check_known(key: str, owner: Any, source: str, prefix: str = "") -> None:
    names = [f.name for f in dataclasses.fields(owner)]
    if key not in names:
        near = difflib.get_close_matches(key, names, 1)
        hint = f"; did you mean {prefix}{near[0]}?" if near else f"; there are {', '.join(names)}"
        if not prefix and key in {f.name for f in dataclasses.fields(Schedule)}:
            hint = f"; each stage has its own: baseline.{key}, sparse.{key}, finetune.{key}"
        raise TrainingError(f"{source}: there is no setting {prefix}{key}{hint}")


def _typed(value: Any, old: Any, key: str, source: str) -> Any:
    """Convert a value to the type of the one it replaces; TrainingError if that is impossible."""
    kind = _kind(old, key)
    if kind == "list" and isinstance(value, (list, tuple)):
        inner = "" if key == "keep" else 0.0
        return tuple(_typed(item, inner, f"{key}={value!r}: entry", source) for item in value)
    if kind in ("float", _NUMBER) and type(value) in (int, float):
        return float(value)
    if type(value).__name__ == kind or (key in _AUTO and value == "auto"):
        return value
    if kind == _WHOLE and type(value) is int:
        return value
    article = "an" if kind == "int" else "a"
    raise TrainingError(f"{source}: {key}={value!r} must be {article} {kind}, as {old!r} is")


def _kind(old: Any, key: str) -> str:
    if key in _AUTO:
        return _AUTO[key]
    return "list" if isinstance(old, tuple) else type(old).__name__


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    first, dot, rest = key.partition(".")
    if dot:
        table = values.setdefault(first, {})
        if not isinstance(table, dict):
            raise TrainingError(f"--set: {first!r} is a table, it cannot be {table!r} as well")
        table[rest] = value
    else:
        values[first] = value


def _parse(text: str) -> Any:
    """Parse a TOML value; a text that is not TOML, such as a plain word, is returned as it is."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text
