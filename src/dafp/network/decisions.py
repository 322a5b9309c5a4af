"""Decisions: integers, truth values and steps that a forward computes from real numbers.

A detector compares scores with a threshold, sorts boxes and removes those that overlap. How many
boxes are left, and so the shapes of all tensors after that, depends on the last digits of numbers.
Two runs of such a network can be compared only if both take the same decisions: the first run
records them (`Decisions`), the second one replays them (`Replay`).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from .dispatch_mode import UncompiledMode
from .leaves import leaves

# real numbers in, real numbers out, and yet not continuous
_STEPS = frozenset(("floor", "ceil", "round", "trunc", "sign", "sgn", "heaviside"))
# integers of these operators are not used as decisions, or do not depend on values
_OTHERS = ("pool", "dropout", "attention", "_like", "new_")


class OtherPathError(RuntimeError):
    """The second run takes decisions in another order than the first one."""


@dataclass(frozen=True)
class TakenDecision:
    """An operator call that turned real numbers into a decision."""

    operator: Any
    shapes: tuple[tuple[int, ...], ...]  # of the real numbers that it depends on
    inputs: tuple[Tensor, ...]  # these numbers, if they were kept
    outcome: Any


@dataclass
class Decisions:
    """Records the decisions of a run, in the order in which they are taken."""

    keep_inputs: bool = False
    taken: list[TakenDecision] = field(default_factory=list)

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator; record it if it is a decision."""
        inputs, held = _inputs(operator, args, kwargs, self.keep_inputs)
        out = operator(*args, **kwargs)
        if _is_decision(operator, inputs, out):
            shapes = tuple(tuple(t.shape) for t in inputs)
            self.taken.append(TakenDecision(operator, shapes, held, _copied(out)))
        return out


@dataclass
class Replay:
    """Takes recorded decisions again, wherever the numbers they depend on have the same shapes."""

    recorded: Sequence[TakenDecision]
    keep_inputs: bool = False
    position: int = 0  # of the next recorded decision
    taken: list[TakenDecision] = field(default_factory=list)

    def run(self, operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator; if it is a decision, return what was decided before."""
        inputs, held = _inputs(operator, args, kwargs, self.keep_inputs)
        out = operator(*args, **kwargs)
        if not _is_decision(operator, inputs, out):
            return out
        shapes = tuple(tuple(t.shape) for t in inputs)
        before = self._next(operator, shapes)
        self.taken.append(TakenDecision(operator, shapes, held, before.outcome))
        return _replaced(operator, out, before.outcome) if shapes == before.shapes else out

    def _next(self, operator: Any, shapes: tuple[tuple[int, ...], ...]) -> TakenDecision:
        """The next decision of this operator; others are skipped: a first run may set values up."""
        for number in range(self.position, len(self.recorded)):
            decision = self.recorded[number]
            there = decision.operator is operator
            if there and (number == self.position or decision.shapes == shapes):
                self.position = number + 1
                return decision
        raise OtherPathError(f"{operator} decides something that it did not decide before")


@dataclass(frozen=True)
class DecisionPath:
    """What a network decides on an example, in eval mode."""

    example: Any
    decisions: tuple[TakenDecision, ...]

    def is_for(self, example: Any) -> bool:
        """Is this the same example?"""
        ours, theirs = tree_leaves(self.example), tree_leaves(example)
        return len(ours) == len(theirs) and all(map(_equal, ours, theirs))


class RunMode(UncompiledMode):
    """The dispatch mode under which a network records its decisions, or replays them."""

    def __init__(self, runner: Decisions | Replay) -> None:
        super().__init__()
        self.runner = runner

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return self.runner.run(func, args, kwargs or {})


def gap_between(ours: Sequence[TakenDecision], theirs: Sequence[TakenDecision]) -> float:
    """The largest relative difference of what went into the same decisions in two runs.

    Numbers of other shapes, those of channels that were removed, are not compared.
    """
    if [d.operator for d in ours] != [d.operator for d in theirs]:
        return float("inf")
    pairs = [
        pair
        for a, b in zip(ours, theirs, strict=True)
        if a.shapes == b.shapes
        for pair in zip(a.inputs, b.inputs, strict=True)
    ]
    return max((relative_gap(now, then) for now, then in pairs), default=0.0)


def relative_gap(now: Tensor, then: Tensor) -> float:
    """The largest difference of finite numbers, relative to the largest; else infinite."""
    if now.is_complex():
        now, then = torch.view_as_real(now), torch.view_as_real(then)
    finite = then.isfinite()
    if not torch.equal(now[~finite].nan_to_num(), then[~finite].nan_to_num()):
        return float("inf")
    now, then = now[finite].double(), then[finite].double()
    if not now.numel():
        return 0.0
    worst = float((now - then).abs().max()) / (float(then.abs().max()) or 1.0)
    return float("inf") if math.isnan(worst) else worst


def _is_decision(operator: Any, inputs: list[Tensor], out: Any) -> bool:
    name = operator.overloadpacket.__name__
    if any(part in name for part in _OTHERS):
        return False
    if name.rstrip("_") in _STEPS:
        return bool(inputs)
    chance = torch.Tag.nondeterministic_seeded in operator.tags
    return (bool(inputs) or chance) and any(_is_discrete(v) for v in leaves(out))


def _is_discrete(value: Any) -> bool:
    if isinstance(value, Tensor):
        return not (value.is_floating_point() or value.is_complex())
    return isinstance(value, (bool, int, float))  # the value of a tensor with one entry


def _inputs(
    operator: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], keep: bool
) -> tuple[list[Tensor], tuple[Tensor, ...]]:
    """The real numbers among the arguments, and copies of them: an operator may work in place."""
    inputs = _real_numbers(args, kwargs)
    return inputs, tuple(t.detach().clone() for t in inputs) if keep else ()


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        alike = (a.shape, a.dtype, a.device) == (b.shape, b.dtype, b.device)
        return a is b or (alike and torch.equal(a, b))
    return type(a) is type(b) and bool(a == b)


def _real_numbers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Tensor]:
    return [t for t in leaves((args, kwargs)) if _is_real(t)]


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and (value.is_floating_point() or value.is_complex())


def _copied(out: Any) -> Any:
    return tree_map_only(Tensor, lambda t: t.detach().clone(), out)


def _replaced(operator: Any, out: Any, before: Any) -> Any:
    """The discrete parts of an output as they were before; its real numbers as they are now."""
    step = operator.overloadpacket.__name__.rstrip("_") in _STEPS
    return _rebuilt(out, iter(leaves(before)), step)


def _rebuilt(out: Any, before: Iterator[Any], step: bool) -> Any:
    if isinstance(out, (list, tuple)):
        return type(out)(_rebuilt(v, before, step) for v in out)
    then = next(before)
    if not (_is_discrete(out) or step):
        return out
    if isinstance(out, Tensor):
        return _written(out, then)
    return then


def _written(out: Tensor, then: Tensor) -> Tensor:
    """The tensor itself, where the outcome has the same shape: an operator may work in place."""
    return out.copy_(then) if out.shape == then.shape else then.clone()
