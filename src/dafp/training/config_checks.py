"""What the settings of a run may be, and which of them exclude each other."""

from collections.abc import Callable, Iterator
from typing import Any

from ..choices import (
    CRITERIA,
    CRITERIA_WITH_DATA,
    METHODS,
    NOT_FOR_LATENCY,
    RULES,
    TAKE_RULE,
    TARGET_UNITS,
)

SHAPES = ("steps", "cosine")
AFTER = ("finetune", "scratch-E", "scratch-B")


def _is_positive(value: Any) -> bool:
    return not isinstance(value, str) and 0 < value < float("inf")


def _is_natural(value: Any) -> bool:
    return not isinstance(value, str) and value >= 0


_CHOICES: dict[str, tuple[str, ...]] = {
    "method": METHODS,
    "unit": TARGET_UNITS,
    "runtime": ("eager", "onnx"),
    "criterion": (*CRITERIA, *CRITERIA_WITH_DATA),
    "rule": ("own", *RULES),
    "residual": ("keep", "couple"),
    "after": AFTER,
    "optimizer": ("sgd", "adamw"),
    "precision": ("fp32", "bf16", "fp16"),
    "tracker": ("", "tensorboard"),
}
_RANGES: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "target": ("lie between 0 and 1", lambda v: 0 < v < 1),
    "p": ("lie between 0 and 1", lambda v: 0 < v < 1),
    "val_share": ("be at least 0 and less than 1", lambda v: 0 <= v < 1),
    "momentum": ("be at least 0 and less than 1", lambda v: 0 <= v < 1),
    "weight_decay": ("be at least 0", lambda v: 0 <= v < float("inf")),
    "step": ("be 'auto' or positive", lambda v: v == "auto" or _is_positive(v)),
    "width": ("be positive", _is_positive),
    "distill": ("be a share, 0 to 1", lambda v: 0 <= v <= 1),
    "temperature": ("be positive", _is_positive),
    "steps": ("be at least 1", lambda v: v >= 1),
    "round_to": ("be 'auto', or not negative", lambda v: v == "auto" or _is_natural(v)),
    "latency_batch": ("be at least 1", lambda v: v >= 1),
    "latency_threads": ("be at least 1", lambda v: v >= 1),
    "min_channels": ("not be negative", lambda v: v >= 0),
    "batch_size": ("be at least 1", lambda v: v >= 1),
    "images": ("not be negative", lambda v: v >= 0),
    "threads": ("not be negative", lambda v: v >= 0),
    "seed": ("not be negative", lambda v: v >= 0),
    "size": ("not be negative", lambda v: v >= 0),
    "left": ("not be negative", lambda v: 0 <= v < float("inf")),
    "resize": ("not be negative", lambda v: v >= 0),
    "test_share": ("lie between 0 and 1", lambda v: 0 < v < 1),
}


def problems_of(config: Any) -> Iterator[str]:
    """Every problem of a configuration, as a short text."""
    for name, allowed in _CHOICES.items():
        value = getattr(config, name)
        if value not in allowed:
            yield f"{name}={value!r} must be one of {', '.join(map(repr, allowed))}"
    for name, (must, fits) in _RANGES.items():
        if not fits(getattr(config, name)):
            yield f"{name}={getattr(config, name)!r} must {must}"
    for name in ("baseline", "sparse", "finetune"):
        schedule = getattr(config, name)
        if schedule.epochs < (0 if name == "baseline" else 1):
            yield f"{name}.epochs={schedule.epochs} is too few"
        if schedule.shape not in SHAPES:
            yield f"{name}.shape={schedule.shape!r} must be one of {', '.join(map(repr, SHAPES))}"
        if not 0 <= schedule.warmup < 1:
            yield f"{name}.warmup={schedule.warmup} must be at least 0 and less than 1"
        if schedule.warmup and schedule.shape != "cosine":
            yield f"{name}.warmup={schedule.warmup} needs {name}.shape='cosine'"
        for key in ("lr", "decay"):
            if not _is_positive(getattr(schedule, key)):
                yield f"{name}.{key}={getattr(schedule, key)} must be positive"
        if not all(0 <= share <= 1 for share in schedule.milestones):
            yield f"{name}.milestones={schedule.milestones} must be shares of the epochs, 0 to 1"
    yield from _contradictions(config)


def _contradictions(config: Any) -> Iterator[str]:
    """The problems of settings that exclude each other."""
    if config.criterion in CRITERIA_WITH_DATA and config.method != "one-shot":
        more = " (method='taylor' is another method)" if config.criterion == "taylor" else ""
        yield f"criterion={config.criterion!r} is for method='one-shot'{more}"
    if config.rule not in ("own", "local_threshold") and not config.move_p:
        yield f"rule={config.rule!r} has no threshold p: set move_p=true"
    if config.rule != "own" and config.method not in TAKE_RULE:
        yield (
            f"rule={config.rule!r}: method={config.method!r} selects by a rule of its own; those "
            f"that take another are {', '.join(TAKE_RULE)}"
        )
    if config.unit == "latency":
        yield from _problems_of_latency(config)
    elif (config.runtime, config.latency_batch, config.latency_threads) != ("eager", 1, 1):
        yield "runtime, latency_batch and latency_threads concern unit='latency'"
    if config.teacher and not config.distill:
        yield f"teacher={config.teacher!r} has no effect while distill=0.0"
    if config.after != "finetune" and (config.distill or config.steps > 1):
        name = "distill" if config.distill else "steps"
        yield f"{name} concerns fine-tuning, and after={config.after!r} trains from scratch"
    if config.steps > config.finetune.epochs:
        yield (
            f"steps={config.steps} are too many for finetune.epochs={config.finetune.epochs}: "
            "each has one epoch at least"
        )


def _problems_of_latency(config: Any) -> Iterator[str]:
    """The problems of a run that removes latency: it measures plans, made after training."""
    if config.method in NOT_FOR_LATENCY:
        yield (
            f"unit='latency': method={config.method!r} decides in training which channels go, so "
            "its plan cannot be corrected by measuring; use unit='macs'"
        )
    if not config.move_p:
        yield "unit='latency' needs move_p=true: at a fixed p, the plan cannot be corrected"
    if config.steps > 1:
        yield f"unit='latency' prunes in one step, not in steps={config.steps}"
