"""`LabelMode`: intercepts every operator while a network runs, and applies its rule to labels."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils.flop_counter import flop_registry

from ..graph.trace_log import MacTerm, RecordedCall
from ..network.decisions import Decisions, Replay
from ..network.dispatch_mode import UncompiledMode
from ..network.leaves import ints_in, leaves, numbers_in, tensors_and_values
from ..network.meta_shapes import meta_output
from ..network.skeleton import TensorKind
from .call import Call, OperatorRule
from .label_tracker import ChannelInfo, LabelTracker


class LabelMode(UncompiledMode):
    """The dispatch mode under which the skeleton of a network runs."""

    def __init__(
        self,
        tracker: LabelTracker,
        rules: Mapping[Any, OperatorRule],
        default_rule: Callable[[Any], OperatorRule],
        tensor_kind: TensorKind,
        running: list[str],
    ) -> None:
        super().__init__()
        self.tracker = tracker
        self.rules = rules
        self.default_rule = default_rule
        self.tensor_kind = tensor_kind
        self.running = running  # the modules whose forward runs, innermost last
        self.calls: list[RecordedCall] = []
        self.constants: list[tuple[float, ...]] = []  # values of new tensors without labels
        self.reached: set[str] = set()  # tensors of the model that were used; only with real data
        self.paused = False
        self.runner: Decisions | Replay = Decisions()  # runs operators on real data
        # calls of all passes so far, by `_key`
        self.seen: dict[Any, tuple[RecordedCall, list[ChannelInfo | None]]] = {}
        self.known: dict[Any, list[ChannelInfo]] = {}  # labels of their outputs: see `_recognise`
        self._rules_found: dict[Any, OperatorRule] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if _is_primitive(func):
            return func(*args, **kwargs)
        if self.paused:
            return self.run(func, args, kwargs)
        given = tensors_and_values(args, kwargs)
        if all(self.tracker.info.get(tensor) is None for tensor in given[0]):
            out = self.run(func, args, kwargs)
            self._note_unlabelled(func, args, kwargs, out)
            return out
        return self.follow(Call(self.tracker, func, args, kwargs, self.running[-1], given))

    def follow(self, call: "Call") -> Any:
        """Run one operator, apply its rule, and record the call for trials of other widths."""
        infos = [self.tracker.info.get(t) for t in call.tensors]
        inputs = tuple(f for info in infos if info is not None for f in info.facets)
        if self.tensor_kind.empty is None:
            self.reached.update(info.name for info in infos if info is not None and info.name)
        key = self._key(call, infos)
        call.out = self.run(call.func, call.args, call.kwargs)
        if key in self.seen and not self.tracker.count_macs:
            return self._as_before(call, self.seen[key][0])
        self.rule_for(call.func)(call)
        outputs = leaves(call.out)
        self._recognise(outputs)
        recorded = RecordedCall(
            call.func,
            call.where,
            ints_in(call.args),
            numbers_in(call.values),
            inputs,
            tuple(self.tracker.info.get(t) if isinstance(t, Tensor) else None for t in outputs),
            tuple(tuple(t.shape) if isinstance(t, Tensor) else () for t in outputs),
            type(call.out),
        )
        self.calls.append(recorded)
        if key is not None:
            self.seen[key] = (recorded, infos)
        return call.out

    def _key(self, call: Call, infos: list[ChannelInfo | None]) -> tuple[Any, ...] | None:
        """A key that is equal for calls that treat the same labels in the same way.

        None if that cannot be known: integer tensors may be indices, and labels of filled tensors
        change. Whether a batch norm is in train mode does not matter.
        """
        if self.tracker.fills or not all(t.is_floating_point() for t in call.tensors):
            return None
        values = call.values
        if "batch_norm" in call.where.op:
            values = [v for v in values if type(v) is not bool]
        shapes = (t.shape for t in call.tensors)
        return (call.func, call.where.module, *values, *map(id, infos), *shapes)

    def _as_before(self, call: Call, recorded: RecordedCall) -> Any:
        """Give the output the labels that an earlier pass recorded for the same call."""
        for tensor, info in zip(leaves(call.out), recorded.outputs, strict=True):
            if info is not None:
                self.tracker.set_info(tensor, info)
        self.calls.append(recorded)
        return call.out

    def _recognise(self, outputs: list[Any]) -> None:
        """Reuse equal `ChannelInfo` objects of an earlier pass, so that the keys of calls match.

        A train pass may differ from the eval pass in a single operator (stochastic depth); the
        calls after it are then found again.
        """
        if self.tracker.fills:
            return
        for tensor in outputs:
            info = self.tracker.info.get(tensor) if isinstance(tensor, Tensor) else None
            if info is None or info.linked or len(info.facets) != 1:
                continue
            facet = info.facets[0]
            key = (facet.shape, int(facet.reshape(-1)[0]), info.is_weight, info.name)
            alike = self.known.setdefault(key, [])
            old = next((t for t in alike if _equal(t, info)), None)
            if old is not None:
                self.tracker.set_info(tensor, old)
            else:
                alike.append(info)

    def rule_for(self, func: Any) -> OperatorRule:
        rule = self._rules_found.get(func)
        if rule is None:
            keys = (func, getattr(func, "overloadpacket", func))
            key = next((key for key in keys if key in self.rules), None)
            rule = self.default_rule(func) if key is None else self.rules[key]
            self._rules_found[func] = rule
        return rule

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.tensor_kind.empty is None:
            out = self.runner.run(func, args, kwargs)
            self._note_decided(func, args, kwargs, out)
            return out
        out = meta_output(func, args, kwargs)
        if out is not NotImplemented:
            return out
        with self.tensor_kind.context():
            return func(*args, **kwargs)

    def _note_decided(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Mark integers and truth values that are computed from activations."""
        whole = [t for t in leaves(out) if isinstance(t, Tensor) and not t.is_floating_point()]
        if not whole or any(part in func.overloadpacket.__name__ for part in ("_like", "new_")):
            return
        given = [t for t in leaves((args, kwargs)) if isinstance(t, Tensor)]
        if any(t.is_floating_point() or self.tracker.decided.get(t) for t in given):
            for tensor in whole:
                self.tracker.decided[tensor] = True

    def _note_unlabelled(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        packet = func.overloadpacket
        if packet.__name__ in _CONSTANTS:
            self.note_constant(_values(Call(self.tracker, func, args, kwargs, self.running[-1])))
        if packet.__name__ in _FACTORIES:
            self.tracker.label_filled_tensor(out)
        elif packet in flop_registry and self.tracker.count_macs:
            macs = flop_registry[packet](*args, **kwargs, out_val=out) // 2
            self.tracker.log.macs.append(MacTerm(macs, ()))

    def note_constant(self, values: tuple[float, ...]) -> None:
        self.constants.append(values)


@cache
def _is_primitive(func: Any) -> bool:
    return bool(func.namespace == "prim")


def _equal(a: ChannelInfo, b: ChannelInfo) -> bool:
    return a.steps == b.steps and torch.equal(a.facets[0], b.facets[0])


def _values(call: Call) -> tuple[float, ...]:
    """The values of a new tensor: its fill value, or a few given numbers."""
    for name in ("fill_value", "value", "s"):
        value = call.arg(name)
        if isinstance(value, (int, float)):
            return (value,)
    given = call.args[0] if call.args else None
    if not isinstance(given, Tensor) or given.is_meta or isinstance(given, FakeTensor):
        return ()
    return tuple(given.reshape(-1).tolist()) if given.numel() <= _FEW else ()


_FEW = 16
_CONSTANTS = ("lift_fresh", "scalar_tensor", "full", "full_like", "new_full", "fill", "fill_")
_FACTORIES = (
    "zeros",
    "ones",
    "full",
    "empty",
    "new_zeros",
    "new_ones",
    "new_full",
    "new_empty",
    "zeros_like",
    "ones_like",
    "empty_like",
    "full_like",
)
