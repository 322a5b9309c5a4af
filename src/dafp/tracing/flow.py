"""Runs a network while every tensor carries its channel labels, and records what meets what."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from ..record import IndexUse, Keep, MacTerm, Read, Record, Site, Step, TensorName, Tie, Where
from ..running import Material
from .labels import ANYBODY, NOBODY, align, on_axis, varied

Rule = Callable[["Call"], None]


@dataclass(frozen=True)
class Tag:
    """What is known of one tensor. Each facet labels other axes (a weight has two)."""

    facets: tuple[Tensor, ...]
    is_weight: bool = False  # made from parameters and buffers only
    steps: tuple[Step, ...] | None = None  # elementwise functions since the last scale
    name: str = ""  # dotted name, when it is a tensor of the model itself
    linked: bool = False  # writing into these labels reaches the tensor that owns the storage


class Flow(TorchDispatchMode):
    """The dispatch mode under which the skeleton of a network runs."""

    def __init__(
        self,
        record: Record,
        rules: Mapping[Any, Rule],
        otherwise: Callable[[Any], Rule],
        material: Material,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.record = record
        self.rules = rules
        self.otherwise = otherwise
        self.material = material
        self.tags: Any = WeakTensorKeyDictionary()
        self.integers: dict[int, str] = {}  # id of an integer tensor of the model -> name
        self.sizes: dict[str, int] = {}  # name of an integer tensor -> number of entries
        self.sums: dict[str, list[int]] = {}  # beginning of both operands -> blocks of sums
        self.modules: list[str] = [""]
        self.sites: list[Site] = []
        self.paused = False
        self.count_macs = True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return func(*args, **kwargs)
        if self.paused or not self._labelled(args, kwargs):
            out = self.run(func, args, kwargs)
            if not self.paused and func.overloadpacket.__name__ in _FACTORIES:
                self.tag_factory(out)
            return out
        return self.follow(Call(self, func, args, kwargs))

    def follow(self, call: "Call") -> Any:
        """Run one operator, apply its rule, and note it for the trial."""
        inputs = tuple(f for t in call.tensors for f in self.facets(t))
        call.out = self.run(call.func, call.args, call.kwargs)
        self.rule_for(call.func)(call)
        outputs, spec = tree_flatten(call.out)
        self.sites.append(
            Site(
                call.func,
                call.where,
                ints_in(call.args),
                numbers_in(call.args),
                inputs,
                tuple(self.tags.get(t) if isinstance(t, Tensor) else None for t in outputs),
                tuple(tuple(t.shape) if isinstance(t, Tensor) else () for t in outputs),
                spec,
            )
        )
        return call.out

    def rule_for(self, func: Any) -> Rule:
        for key in (func, getattr(func, "overloadpacket", func)):
            if key in self.rules:
                return self.rules[key]
        return self.otherwise(func)

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        if self.material.empty is not None and func in SHORTCUTS:
            return SHORTCUTS[func](args)
        with self.material.context():
            return func(*args, **kwargs)

    def facets(self, tensor: Tensor) -> tuple[Tensor, ...]:
        tag = self.tags.get(tensor)
        return tag.facets if tag is not None else ()

    def tag(self, tensor: Tensor, tag: Tag) -> None:
        self.tags[tensor] = tag

    @contextmanager
    def inside(self, module: str) -> Iterator[None]:
        self.modules.append(module)
        try:
            yield
        finally:
            self.modules.pop()

    # ---- what rules record -------------------------------------------------------------------

    def tie(self, kind: str, a: Tensor, b: Tensor, where: Where) -> None:
        """Channels a[i] and b[i] go together; one that meets nobody's channel is kept."""
        a, b = torch.broadcast_tensors(a, b)
        a, b = a.reshape(-1), b.reshape(-1)
        both = (a >= 0) & (b >= 0) & (a != b)
        lonely = torch.cat([a[(a >= 0) & (b == NOBODY)], b[(b >= 0) & (a == NOBODY)]])
        if lonely.numel():
            self.keep(lonely, where, "meets channels that no layer makes")
        if both.any():
            self.record.ties.append(Tie(kind, a[both], b[both], where))

    def tie_along(self, label: Tensor, axis: int, where: Where) -> Tensor:
        first = label.narrow(axis, 0, 1)
        self.tie("same", first, label, where)
        return first

    def keep(self, label: Tensor, where: Where, reason: str) -> None:
        label = label.reshape(-1)
        label = label[label >= 0]
        if label.numel():
            self.record.keeps.append(Keep(label, where, reason))

    def role(self, role: str, label: Tensor) -> None:
        label = label.reshape(-1)
        self.record.roles.setdefault(role, []).append(label[label >= 0])

    def sum_of(self, a: Tensor, b: Tensor, where: Where) -> Tensor:
        """Fresh labels for the sum of two producers, so that a reader finds both scales."""
        a, b = torch.broadcast_tensors(a, b)
        key = (a.reshape(-1)[:2].tolist(), b.reshape(-1)[:2].tolist(), a.numel())
        for start in self.sums.setdefault(str(key), []):  # the other pass met them too
            old_a, old_b = self.record.sums[start]
            if torch.equal(old_a, a.reshape(-1)) and torch.equal(old_b, b.reshape(-1)):
                return torch.arange(start, start + a.numel()).view(a.shape)
        block = self.record.new_block("", 0, a.numel())
        self.sums[str(key)].append(block.start)
        fresh = torch.arange(block.start, block.start + block.size).view(a.shape)
        fresh = torch.where((a >= 0) & (b >= 0), fresh, torch.maximum(a, b))
        self.record.sums[block.start] = (a.reshape(-1).clone(), b.reshape(-1).clone())
        self.tie("same", fresh, a, where)
        return fresh

    def index_entries(self, name: str, source: Tensor, where: Where) -> Tensor:
        """The labels of an integer tensor of the model that points into `source`."""
        uses = {use.tensor: use for use in self.record.indices}
        if name not in uses:
            size = self.sizes[name]
            self.record.indices.append(IndexUse(name, source.clone()))
            self.record.new_block(name, 0, size)
        elif not torch.equal(uses[name].source, source):
            self.keep(source, where, "an index tensor that points into two layers")
        block = next(b for b in self.record.blocks if b.tensor == name)
        return torch.arange(block.start, block.start + block.size)

    # ---- helpers -----------------------------------------------------------------------------

    def _labelled(self, args: Any, kwargs: Any) -> bool:
        return any(isinstance(t, Tensor) and t in self.tags for t in tree_leaves((args, kwargs)))

    def tag_factory(self, out: Tensor) -> None:
        """A uniformly filled tensor takes the labels of whatever is written into it."""
        if out.dim() > 1 and out.shape[1] > 1 and out.is_floating_point():
            ids = torch.full((out.shape[1],), ANYBODY)
            self.tag(out, Tag((on_axis(ids, 1, out.dim()),), linked=True))


_FACTORIES = ("zeros", "ones", "full", "empty", "new_zeros", "new_ones", "new_full", "new_empty",
              "zeros_like", "ones_like", "empty_like", "full_like")  # fmt: skip


def numbers_in(value: Any) -> tuple[float, ...]:
    """All plain numbers among the arguments of an operator."""
    return tuple(v for v in tree_leaves(value) if isinstance(v, (int, float)))


def ints_in(value: Any) -> tuple[int, ...]:
    """All whole numbers among the arguments of an operator."""
    return tuple(v for v in tree_leaves(value) if type(v) is int)


class Call:
    """One operator call (or, for a rule on a module class, one module call) as rules see it.

    `args`, `kwargs` and `out` are what the operator got and gave. A rule says what happens to the
    channels with `same`, `linear`, `follow` or `keep`; outputs it does not mention have none.
    """

    def __init__(
        self, flow: Flow, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.flow = flow
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.out: Any = None
        self.module: Any = None
        self.where = Where(_op_name(func), flow.modules[-1])
        self.tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor)]

    def arg(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the operator's schema."""
        if name in self.kwargs:
            return self.kwargs[name]
        for position, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                return self.args[position] if position < len(self.args) else argument.default_value
        return default

    # ---- for authors of rules ----------------------------------------------------------------

    def same(self, x: Tensor, out: Tensor | None = None) -> None:
        """Channel-wise: the output has the channels of x."""
        out = self.out if out is None else out
        tag = self.flow.tags.get(x)
        if tag is not None:
            self.flow.tag(out, Tag(tag.facets, tag.is_weight))

    def linear(
        self, x: Tensor, weight: Tensor, bias: Tensor | None = None, *,
        in_dim: int = 1, out_dim: int = 0, axis: int = 1,
    ) -> None:  # fmt: skip
        """Weighted sum over the channels of x (on `axis`), like a convolution or linear layer."""
        read = self.channels(x, axis)
        self.read(read, weight, in_dim, out_dim, x)
        made = self.make(weight, out_dim)
        sized = [self.channels(weight, dim) for dim in (in_dim, out_dim)]
        fixed = [s for d, s in enumerate(weight.shape) if d not in (in_dim, out_dim)]
        fixed += [
            weight.shape[d] for d, v in zip((in_dim, out_dim), sized, strict=True) if v is None
        ]
        self.count(self.out.numel() // self.out.shape[axis] * math.prod(fixed), *sized)
        if bias is not None and made is not None:
            self.follow(made, bias)
        if made is not None:
            self.flow.tag(self.out, Tag((on_axis(made, axis, self.out.dim()),)))

    def follow(self, labels: Tensor, tensor: Tensor, dim: int = 0) -> None:
        """`tensor` (a bias, a slope, a statistic) loses its entries along with the channels."""
        other = self.channels(tensor, dim)
        if other is not None:
            self.flow.tie("same", labels, other, self.where)
        elif tensor.shape[dim] > 1:
            self.flow.keep(labels, self.where, "meets a tensor that is not a part of the model")

    def keep(self, reason: str, tensors: Sequence[Tensor] | None = None) -> None:
        """Nothing that reaches this call may be removed."""
        for tensor in self.tensors if tensors is None else tensors:
            for facet in self.flow.facets(tensor):
                self.flow.keep(facet, self.where, reason)

    # ---- shared by our own rules -------------------------------------------------------------

    def set(self, out: Tensor, facets: Sequence[Tensor], like: Tensor | None = None) -> None:
        """Give the output its labels; weight-ness comes from `like`."""
        facets = tuple(f for f in facets if f.numel() > 1)
        old = self.flow.tags.get(like) if like is not None else None
        is_weight = old.is_weight if old is not None else False
        steps = old.steps if old is not None else None
        if facets:
            linked = old is not None and old.linked and _share(facets[0], old.facets[0])
            self.flow.tag(out, Tag(facets, is_weight, steps, linked=linked))

    def is_weight(self, tensor: Tensor) -> bool:
        tag = self.flow.tags.get(tensor)
        return tag is not None and tag.is_weight

    def channels(self, tensor: Tensor, axis: int) -> Tensor | None:
        """The labels along one axis as a vector; what varies elsewhere too is tied there."""
        found: Tensor | None = None
        for facet in self.flow.facets(tensor):
            if facet.shape[axis] == 1:
                continue
            for other in varied(facet):
                if other != axis % facet.dim():
                    facet = self.flow.tie_along(facet, other, self.where)
            vector = facet.reshape(-1)
            if found is not None:
                self.flow.tie("same", found, vector, self.where)
            found = vector if found is None else found
        return found

    def others(self, tensor: Tensor, axis: int) -> list[Tensor]:
        """The facets that do not vary along this axis."""
        return [f for f in self.flow.facets(tensor) if f.shape[axis] == 1]

    def read(
        self, source: Tensor | None, weight: Tensor, in_dim: int, out_dim: int | None,
        x: Tensor, groups: int = 1,
    ) -> None:  # fmt: skip
        """Tie what is read to the weight's slices that read it."""
        if source is None:
            return
        target = self.channels(weight, in_dim)
        if target is None or not self.is_weight(weight):
            self.flow.keep(source, self.where, "read by something that has no weights to cut")
            if target is not None:
                self.flow.keep(target, self.where, "sums over channels without weights")
            return
        if (target.numel() * groups) != source.numel():
            self.flow.keep(source, self.where, "read by weights of another size")
            return
        target = target.repeat(source.numel() // target.numel())
        self.flow.role("consumer", target)
        self.flow.tie("read", source, target, self.where)
        tag, weight_tag = self.flow.tags.get(x), self.flow.tags.get(weight)
        made = self.channels(weight, out_dim) if out_dim is not None else None
        self.flow.record.reads.append(
            Read(source, target, made, self._name(weight_tag, target), groups,
                 tag.steps if tag is not None else None, self.where)
        )  # fmt: skip

    def make(self, weight: Tensor, out_dim: int) -> Tensor | None:
        """The labels that a weight gives to what it makes."""
        made = self.channels(weight, out_dim)
        if made is not None and self.is_weight(weight):
            self.flow.role("producer", made)
        return made

    def count(self, constant: int, *axes: Tensor | None) -> None:
        if self.flow.count_macs:
            known = tuple(axis for axis in axes if axis is not None)
            self.flow.record.macs.append(MacTerm(constant, known))

    def use_index(self, index: Tensor, source: Tensor) -> Tensor | None:
        """Labels picked by an integer tensor; one that belongs to the model is renumbered."""
        if index.dtype == torch.bool or index.dim() != 1 or self._is_fake(index):
            return None
        picked = source[index.to(source.device)]
        name = self.flow.integers.get(id(index))
        if name is not None:
            entries = self.flow.index_entries(name, source, self.where)
            self.flow.tie("same", entries, picked, self.where)
        return picked

    def step(self, x: Tensor) -> tuple[Step, ...] | None:
        """The elementwise functions since the last scale, with this one added."""
        tag = self.flow.tags.get(x)
        if tag is None or tag.steps is None:
            return None
        rest = []
        for value in self.args[1:]:
            if isinstance(value, Tensor):
                other = self.flow.tags.get(value)
                if other is None or not other.name:
                    return None
                rest.append(TensorName(other.name))
            else:
                rest.append(value)
        return (*tag.steps, Step(self.func, tuple(rest), dict(self.kwargs)))

    def broadcast(self, tensor: Tensor, ndim: int) -> list[Tensor]:
        return [align(facet, ndim) for facet in self.flow.facets(tensor)]

    @staticmethod
    def _is_fake(tensor: Tensor) -> bool:
        return tensor.is_meta or isinstance(tensor, FakeTensor)

    def _name(self, tag: Tag | None, target: Tensor) -> str:
        if tag is not None and tag.name:
            return tag.name
        known = target[target >= 0]
        return self.flow.record.block_at(int(known[0])).tensor if known.numel() else ""


def _batch_norm_shape(args: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """What batch norm gives, without the slow kernel for tensors that have no numbers."""
    x, owned = args[0], [t for t in args[1:5] if isinstance(t, Tensor)]
    if any(t.shape[0] != x.shape[1] for t in owned):
        raise RuntimeError(f"batch norm of {owned[0].shape[0]} channels got {x.shape[1]}")
    stats = x.new_empty(x.shape[1]) if args[5] else x.new_empty(0)
    return torch.empty_like(x), stats, stats


_SAME_SHAPE = [
    "relu",
    "silu",
    "sigmoid",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "leaky_relu",
    "gelu",
    "elu",
    "tanh",
    "mish",
    "relu6",
    "selu",
    "softplus",
]
# operators whose result is known without asking torch's slow kernels for tensors without numbers
SHORTCUTS: dict[Any, Callable[[tuple[Any, ...]], Any]] = {
    torch.ops.aten.native_batch_norm.default: _batch_norm_shape
}
for _name in _SAME_SHAPE:
    if hasattr(torch.ops.aten, _name):
        SHORTCUTS[getattr(torch.ops.aten, _name).default] = lambda args: torch.empty_like(args[0])
    if hasattr(torch.ops.aten, f"{_name}_"):
        SHORTCUTS[getattr(torch.ops.aten, f"{_name}_").default] = lambda args: args[0]


def _share(a: Tensor, b: Tensor) -> bool:
    return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()


def _op_name(func: Any) -> str:
    packet = getattr(func, "overloadpacket", None)
    return packet.__name__ if packet is not None else getattr(func, "__name__", str(func))
