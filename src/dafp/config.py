"""What a run is told: one frozen value, read from TOML, options and presets."""

import dataclasses
import difflib
import json
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .errors import TrainingError

AFTER = ("finetune", "scratch-E", "scratch-B")


@dataclass(frozen=True)
class Schedule:
    """Epochs and learning rate of one stage."""

    epochs: int
    lr: float = 0.1
    milestones: tuple[float, ...] = (0.5, 0.75)  # shares of the epochs where lr falls
    decay: float = 0.1  # to this share of itself


@dataclass(frozen=True)
class Config:
    """A whole run. The defaults are what `dafp run` does on the embedded data."""

    model: str = "vgg16"
    width: float = 0.25
    weights: str = ""  # file to start from, "" for fresh weights
    data: str = "digits"
    root: str = "data"
    images: int = 0  # training images to use, 0 for all
    val_share: float = 0.1
    batch_size: int = 32
    seed: int = 0
    method: str = "dafp"
    target: float = 0.5  # share to remove
    unit: str = "filters"
    p: float = 0.01
    step: float | str = "auto"
    criterion: str = "dependency_aware"
    residual: str = "keep"
    keep: tuple[str, ...] = ()
    compensate: bool = True  # give the mean of removed channels to their readers
    after: str = "finetune"
    optimizer: str = "sgd"
    momentum: float = 0.9
    weight_decay: float = 1e-4
    precision: str = "fp32"
    channels_last: bool = True
    threads: int = 0  # 0: as torch decides
    tracker: str = ""  # or "tensorboard"
    baseline: Schedule = field(default_factory=lambda: Schedule(20, 0.05))
    sparse: Schedule = field(default_factory=lambda: Schedule(20, 0.05, ()))
    finetune: Schedule = field(default_factory=lambda: Schedule(20, 0.05))

    def __post_init__(self) -> None:
        problems = list(_problems(self))
        if problems:
            raise TrainingError("this configuration cannot run: " + "; ".join(problems))


_PAPER: dict[str, Any] = {
    "width": 1.0, "batch_size": 64, "step": 1e-5, "compensate": False,
    "baseline": Schedule(160), "sparse": Schedule(160, 0.1, ()), "finetune": Schedule(160),
}  # fmt: skip
_CIFAR_LITE: dict[str, Any] = {
    "data": "cifar10", "images": 10000, "batch_size": 64,
    "baseline": Schedule(20), "sparse": Schedule(20, 0.1, ()), "finetune": Schedule(20),
}  # fmt: skip
PRESETS: dict[str, dict[str, Any]] = {
    "digits": {},
    "cifar10-lite": _CIFAR_LITE,
    "cifar10": {**_PAPER, "data": "cifar10"},
    "cifar100": {**_PAPER, "data": "cifar100"},
    "svhn": {
        **_PAPER, "data": "svhn",
        "baseline": Schedule(40), "sparse": Schedule(40, 0.1, ()), "finetune": Schedule(40),
    },
    "imagenet": {
        **_PAPER, "data": "imagenet", "model": "preresnet50-imagenet", "batch_size": 256,
        "precision": "fp16", "baseline": Schedule(100, 0.1, (0.3, 0.6, 0.9)),
        "sparse": Schedule(40, 0.1, ()), "finetune": Schedule(100, 0.1, (0.3, 0.6, 0.9)),
    },
}  # fmt: skip


def make_config(
    preset: str = "digits", file: Path | None = None, settings: list[str] | None = None
) -> Config:
    """The preset, changed by a TOML file, changed by `key=value` settings."""
    if preset not in PRESETS:
        raise TrainingError(f"there is no preset {preset!r}; choose one of {', '.join(PRESETS)}")
    config = Config(**PRESETS[preset])
    if file is not None:
        config = changed(config, read_toml(file), str(file))
    values: dict[str, Any] = {}
    for setting in settings or []:
        key, equals, text = setting.partition("=")
        if not equals:
            raise TrainingError(f"--set {setting!r}: write key=value, e.g. sparse.epochs=40")
        _put(values, key.strip(), _parse(text.strip()))
    return changed(config, values, "--set")


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
        return tomllib.loads(path.read_text())
    except FileNotFoundError as error:
        raise TrainingError(f"there is no configuration {path}") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise TrainingError(f"{path} cannot be read as TOML: {error}") from error


def to_toml(config: Config) -> str:
    """The configuration as text; reading it back gives an equal one."""
    plain, tables = [], []
    for key, value in dataclasses.asdict(config).items():
        if isinstance(value, dict):
            tables.append(f"\n[{key}]")
            tables += [f"{inner} = {_literal(item)}" for inner, item in value.items()]
        else:
            plain.append(f"{key} = {_literal(value)}")
    return "\n".join(plain + tables) + "\n"


def differences(old: Config, new: Config) -> list[str]:
    """`key: old → new` for everything in which two configurations differ."""
    found = []
    for key, value in dataclasses.asdict(old).items():
        other = dataclasses.asdict(new)[key]
        if isinstance(value, dict):
            found += [f"{key}.{k}: {v} → {other[k]}" for k, v in value.items() if v != other[k]]
        elif value != other:
            found.append(f"{key}: {value!r} → {other!r}")
    return found


def _problems(config: Config) -> Any:
    """Everything that is wrong with it, each in a few words."""
    if not 0 < config.target < 1:
        yield f"target={config.target} must lie between 0 and 1"
    for name, allowed in (
        ("unit", ("filters", "params", "macs")), ("after", AFTER), ("optimizer", ("sgd", "adamw")),
        ("precision", ("fp32", "bf16", "fp16")), ("residual", ("keep", "couple")),
        ("tracker", ("", "tensorboard")),
    ):  # fmt: skip
        if getattr(config, name) not in allowed:
            yield f"{name}={getattr(config, name)!r} must be one of {', '.join(map(repr, allowed))}"
    for name in ("baseline", "sparse", "finetune"):
        schedule = getattr(config, name)
        if schedule.epochs < (0 if name == "baseline" else 1):
            yield f"{name}.epochs={schedule.epochs} is too few"
        if not 0 < schedule.lr < float("inf"):
            yield f"{name}.lr={schedule.lr} must be positive"
    for name in ("images", "threads", "seed"):
        if getattr(config, name) < 0:
            yield f"{name}={getattr(config, name)} must not be negative"


def _check_known(key: str, owner: Any, source: str, prefix: str = "") -> None:
    names = [f.name for f in dataclasses.fields(owner)]
    if key not in names:
        near = difflib.get_close_matches(key, names, 1)
        hint = f"; did you mean {prefix}{near[0]}?" if near else f"; there are {', '.join(names)}"
        raise TrainingError(f"{source}: there is no setting {prefix}{key}{hint}")


def _typed(value: Any, old: Any, key: str, source: str) -> Any:
    """The value in the type of the one it replaces."""
    if key == "step" and (value == "auto" or isinstance(value, (int, float))):
        return value if value == "auto" else float(value)
    if isinstance(old, tuple) and isinstance(value, (list, tuple)):
        return tuple(value)
    if isinstance(old, float) and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if type(value) is type(old):
        return value
    raise TrainingError(f"{source}: {key}={value!r} must be a {type(old).__name__}, as {old!r} is")


def _put(values: dict[str, Any], key: str, value: Any) -> None:
    first, dot, rest = key.partition(".")
    if dot:
        values.setdefault(first, {})[rest] = value
    else:
        values[first] = value


def _parse(text: str) -> Any:
    """A TOML value; plain words are text."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if isinstance(value, str):
        return json.dumps(value)
    return repr(value)
