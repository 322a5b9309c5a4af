"""`Call`: one operator call, with the methods that rules use. See rules/table.py for the rules."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._subclasses import FakeTensor

from ..graph.trace_log import Consumer, ElementwiseStep, Location, MacTerm, NormUse, TensorName
from ..network.channel_norms import ChannelNorm, weight_and_bias
from ..network.leaves import tensors_and_values
from .label_tracker import ChannelInfo, LabelTracker
from .labels import align, on_axis, same_storage, varied


class Call:
    """One operator call, or one module call for the rule of a module class.

    A rule is a function of a `Call`, passed as `dafp.trace(..., rules={operator: rule})`. It
    describes the channels with `same`, `linear`, `follow` and `keep`. An output that the rule
    does not describe has no channels.

    Attributes:
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call.
        out: What the call returned.
        module: The module, for the rule of a module class.

    Examples:
        >>> class Gain(nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.gain = nn.Parameter(torch.ones(4))
        ...     def forward(self, x):
        ...         return torch.fft.ifft(torch.fft.fft(x)).real * self.gain[:, None, None]
        >>> def rule(call):
        ...     call.follow(call.channels(call.args[0], 1), call.module.gain)
        ...     call.same(call.args[0])
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 1), Gain(), nn.Conv2d(4, 2, 1))
        >>> graph = dafp.trace(model, torch.zeros(1, 3, 8, 8), rules={Gain: rule})
        >>> [slot.param for slot in graph["0"].followers]
        ['0.bias', '1.gain']
    """

    def __init__(
        self,
        tracker: LabelTracker,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inside: str,
        given: tuple[list[Tensor], list[Any]] | None = None,
    ) -> None:
        self.tracker = tracker
        self.func = func
        self.args = args
        self.kwargs = kwargs
        self.out: Any = None
        self.module: Any = None
        self.where = Location(_op_name(func), inside)
        self.tensors, self.values = given or tensors_and_values(args, kwargs)

    def arg(self, name: str, default: Any = None) -> Any:
        """An argument by its name in the operator's schema."""
        if name in self.kwargs:
            return self.kwargs[name]
        for position, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                return self.args[position] if position < len(self.args) else argument.default_value
        return default

    # ---- for users' rules --------------------------------------------------------------------

    def same(self, x: Tensor, out: Tensor | None = None) -> None:
        """Declare that the output (by default `call.out`) has the channels of x."""
        out = self.out if out is None else out
        info = self.tracker.info.get(x)
        if info is not None:
            self.tracker.set_info(out, ChannelInfo(info.facets, info.is_weight))

    def linear(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *,
        in_dim: int = 1,
        out_dim: int = 0,
        axis: int = 1,
    ) -> None:
        """Declare that the output is a weighted sum over the channels of x, as in a convolution.

        Args:
            x: The input, with its channels on `axis`.
            weight: A tensor of the model, with inputs on `in_dim` and outputs on `out_dim`.
            bias: A tensor of the model with one entry per output channel.
        """
        consumer = self.channels(x, axis)
        self.consume(consumer, weight, in_dim, out_dim, x)
        made = self.produce(weight, out_dim)
        sized = [self.channels(weight, dim) for dim in (in_dim, out_dim)]
        fixed = [s for d, s in enumerate(weight.shape) if d not in (in_dim, out_dim)]
        fixed += [
            weight.shape[d] for d, v in zip((in_dim, out_dim), sized, strict=True) if v is None
        ]
        self.count(self.out.numel() // self.out.shape[axis] * math.prod(fixed), *sized)
        if bias is not None and made is not None:
            self.follow(made, bias)
        if made is not None:
            self.tracker.set_info(self.out, ChannelInfo((on_axis(made, axis, self.out.dim()),)))

    def follow(self, labels: Tensor, tensor: Tensor, dim: int = 0) -> None:
        """Declare a follower: `tensor` (a bias, a slope, a statistic) is sliced with the channels.

        Args:
            labels: The channels, as `channels` returns them.
            tensor: A tensor of the model, with one entry per channel.
            dim: The axis of `tensor` that is sliced.
        """
        other = self.channels(tensor, dim)
        if other is not None:
            self.tracker.tie("same", labels, other, self.where)
        elif tensor.shape[dim] > 1:
            self.tracker.keep(labels, self.where, "combined with a tensor from outside the model")

    def normalise(
        self, x: Tensor, kind: str, axis: int = -1, eps: float = 1e-6, *, whole: bool = False
    ) -> None:
        """Declare that the module is a norm over the channels of x; for rules of module classes.

        With residual="couple", its statistics are then taken over the channels that are left.

        Args:
            kind: "layer", "rms", "rms_from_one" (scaled by 1 + weight) or "response" (GRN). The
                first parameter of the module is the scale, the second the shift.
            whole: Statistics over all axes but the first, as GroupNorm with one group takes them.
        """
        norm = ChannelNorm(kind, axis, eps, whole)
        source, owned = self.channels(x, axis), weight_and_bias(self.module)
        for other in self.others(x, axis):
            self.tracker.keep(other, self.where, "statistics are taken over it")
        vectors = [self._vector(t) for t in owned if t is not None]
        labels = [v for v in vectors if v is not None]
        if source is None or len(labels) < len(vectors):
            for found in labels if source is None else [source]:
                self.tracker.keep(found, self.where, "normalised with a tensor of other channels")
            return
        self.tracker.note_norm(NormUse(self.where.module, source, norm))
        self.tracker.note_shift(*owned)
        scale = labels[0] if labels and kind != "response" else None
        if scale is not None:
            self.tracker.role("scale", scale)
        for vector in labels:
            self.tracker.tie("norm" if vector is scale else "same", source, vector, self.where)
        facet = on_axis(source if scale is None else scale, axis, x.dim())
        self.tracker.set_info(self.out, ChannelInfo((facet,), steps=None if scale is None else ()))

    def keep(self, reason: str, tensors: Sequence[Tensor] | None = None) -> None:
        """Declare that no channel of these tensors (by default, of any argument) may be removed.

        Args:
            reason: Why, for `graph.kept`.
            tensors: The tensors; None means all arguments.
        """
        for tensor in self.tensors if tensors is None else tensors:
            for facet in self.tracker.facets(tensor):
                self.tracker.keep(facet, self.where, reason)

    # ---- for the rules of dafp ---------------------------------------------------------------

    def set(
        self,
        out: Tensor,
        facets: Sequence[Tensor],
        like: Tensor | None = None,
        *,
        same_mean: bool = True,
    ) -> None:
        """Give the output these labels. Its other properties are those of `like`.

        `same_mean`: every channel of the output has the same mean as in `like`.
        """
        facets = tuple(f for f in facets if f.numel() > 1)
        old = self.tracker.info.get(like) if like is not None else None
        is_weight = old.is_weight if old is not None else False
        steps = old.steps if old is not None and same_mean else None
        if facets:
            linked = old is not None and old.linked and same_storage(facets[0], old.facets[0])
            self.tracker.set_info(out, ChannelInfo(facets, is_weight, steps, linked=linked))

    def is_weight(self, tensor: Tensor) -> bool:
        return bool(getattr(self.tracker.info.get(tensor), "is_weight", False))

    def channels(self, tensor: Tensor, axis: int) -> Tensor | None:
        """The labels along one axis as a vector, or None. Labels are tied along all other axes."""
        found: Tensor | None = None
        for facet in self.tracker.facets(tensor):
            if facet.shape[axis] == 1:
                continue
            for other in varied(facet):
                if other != axis % facet.dim():
                    facet = self.tracker.tie_along(facet, other, self.where)
            vector = facet.reshape(-1)
            if found is not None:
                self.tracker.tie("same", found, vector, self.where)
            found = vector if found is None else found
        return found

    def others(self, tensor: Tensor, axis: int) -> list[Tensor]:
        """The facets that do not vary along this axis."""
        return [f for f in self.tracker.facets(tensor) if f.shape[axis] == 1]

    def consume(
        self,
        source: Tensor | None,
        weight: Tensor,
        in_dim: int,
        out_dim: int | None,
        x: Tensor,
        groups: int = 1,
    ) -> None:
        """Tie the channels `source` of x to the entries of the weight that consume them."""
        if source is None:
            return
        target, weight_info = self.channels(weight, in_dim), self.tracker.info.get(weight)
        if target is None or not self.is_weight(weight):
            origin = "that the forward computes" if weight_info else "from outside the model"
            self.tracker.keep(source, self.where, f"consumed by weights {origin}")
            if target is not None:
                self.tracker.keep(target, self.where, "the forward uses its outputs as weights")
            return
        if (target.numel() * groups) != source.numel():
            self.tracker.keep(source, self.where, "consumed by weights of another size")
            return
        target = target.repeat(source.numel() // target.numel())
        self.tracker.role("consumer", target)
        self.tracker.tie("consume", source, target, self.where)
        info = self.tracker.info.get(x)
        made = self.channels(weight, out_dim) if out_dim is not None else None
        name, steps = self._name(weight_info, target), info.steps if info is not None else None
        consumer = Consumer(source, target, made, name, groups, steps, self.where)
        self.tracker.log.consumers.append(consumer)

    def produce(self, weight: Tensor, out_dim: int) -> Tensor | None:
        """Record a weight as producer, and return the labels of the channels it produces."""
        made = self.channels(weight, out_dim)
        if made is not None and self.is_weight(weight):
            self.tracker.role("producer", made)
        return made

    def count(self, constant: int, *axes: Tensor | None) -> None:
        """Record constant · Π (channels left on each axis) multiply-adds."""
        if self.tracker.count_macs:
            known = tuple(axis for axis in axes if axis is not None)
            self.tracker.log.macs.append(MacTerm(constant, known))

    def use_index(self, index: Tensor, source: Tensor) -> Tensor | None:
        """The labels that an integer vector picks, or None if its values are not known.

        If the vector is a tensor of the model, pruning renumbers it.
        """
        unknown = self._is_fake(index) or self.tracker.decided.get(index)
        if index.dtype == torch.bool or index.dim() != 1 or unknown:
            return None
        picked = source[index.to(source.device)]
        name = self.tracker.integers.get(id(index))
        if name is not None:
            entries = self.tracker.index_entries(name, source, self.where)
            self.tracker.tie("same", entries, picked, self.where)
        return picked

    def is_constant(self, positions: Tensor) -> bool:
        """Are these positions the same for all data, and not held in a tensor of the model?"""
        decided = self.tracker.decided.get(positions) is not None
        return not (self._is_fake(positions) or decided or id(positions) in self.tracker.integers)

    def step(self, x: Tensor) -> tuple[ElementwiseStep, ...] | None:
        """The elementwise functions since the last scale, including this one."""
        info = self.tracker.info.get(x)
        if info is None or info.steps is None:
            return None
        rest = []
        for value in self.args[1:]:
            if isinstance(value, Tensor):
                other = self.tracker.info.get(value)
                if other is None or not other.name:
                    return None
                rest.append(TensorName(other.name))
            else:
                rest.append(value)
        return (*info.steps, ElementwiseStep(self.func, tuple(rest), dict(self.kwargs)))

    def broadcast(self, tensor: Tensor, ndim: int) -> list[Tensor]:
        return [align(facet, ndim) for facet in self.tracker.facets(tensor)]

    def _vector(self, tensor: Tensor) -> Tensor | None:  # of the longest axis
        return self.channels(tensor, max(range(tensor.dim()), key=lambda axis: tensor.shape[axis]))

    @staticmethod
    def _is_fake(tensor: Tensor) -> bool:
        return tensor.is_meta or isinstance(tensor, FakeTensor)

    def _name(self, info: ChannelInfo | None, target: Tensor) -> str:
        if info is not None and info.name:
            return info.name
        known = target[target >= 0]
        return self.tracker.log.block_at(int(known[0])).tensor if known.numel() else ""


OperatorRule = Callable[[Call], None]


def _op_name(func: Any) -> str:
    packet = getattr(func, "overloadpacket", None)
    return packet.__name__ if packet is not None else getattr(func, "__name__", str(func))
