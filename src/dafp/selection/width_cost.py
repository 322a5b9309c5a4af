"""The cost of a network as a function of the number of channels of each group."""

import math

import torch
from torch import Tensor

from ..graph.channel_graph import ChannelGraph
from ..graph.label_index import LabelIndex


class WidthCost:
    """Parameters, multiply-adds or filters for any widths, without making a plan.

    Every tensor and every layer costs a constant times a product of widths, and every width is
    linear in the numbers of channels. `ChannelGraph.predict` is exact where this is not (a BN that
    all selections of a stream narrow), and slower.
    """

    def __init__(self, graph: ChannelGraph, unit: str) -> None:
        self.sizes = torch.tensor([float(g.size) for g in graph.groups], dtype=torch.double)
        terms = {"params": _of_parameters, "macs": _of_layers}.get(unit)
        if terms is None:
            filters = [float(g.kind == "filter") for g in graph.groups]
            self._constant = torch.ones(1, dtype=torch.double)
            self._base = torch.zeros(1, 1, dtype=torch.double)
            self._slope = torch.tensor(filters, dtype=torch.double).view(1, 1, -1)
            return
        found = terms(graph.label_index)
        most = max((len(axes) for _, axes in found), default=1)
        self._constant = torch.tensor([float(constant) for constant, _ in found]).double()
        self._base = torch.ones(len(found), most, dtype=torch.double)
        self._slope = torch.zeros(len(found), most, len(self.sizes), dtype=torch.double)
        for number, (_, axes) in enumerate(found):
            for axis, labels in enumerate(axes):
                group = graph.label_index.group_of[labels.clamp(min=0)]
                free = (labels >= 0) & (group >= 0)
                self._base[number, axis] = float((~free).sum())
                counts = torch.bincount(group[free], minlength=len(self.sizes))
                self._slope[number, axis] = counts / self.sizes

    def __call__(self, widths: Tensor) -> float:
        """The cost if group n has widths[n] channels."""
        return float((self._constant * (self._base + self._slope @ widths).prod(1)).sum())

    def savings(self, widths: Tensor) -> Tensor:
        """What one channel less of each group saves, from the derivative of the cost."""
        factors = self._base + self._slope @ widths  # terms × axes
        total = torch.zeros_like(self.sizes)
        for axis in range(factors.shape[1]):
            others = torch.cat([factors[:, :axis], factors[:, axis + 1 :]], 1).prod(1)
            total += (self._constant * others) @ self._slope[:, axis]
        return total


def _of_parameters(label_index: LabelIndex) -> list[tuple[int, list[Tensor]]]:
    found = []
    for name in sorted(label_index.parameters):
        shape = label_index.shapes[name]
        axes = {d: label_index.labels(name, d) for d in range(len(shape))}
        fixed = math.prod(size for d, size in enumerate(shape) if axes[d] is None)
        found.append((fixed, [labels for labels in axes.values() if labels is not None]))
    return found


def _of_layers(label_index: LabelIndex) -> list[tuple[int, list[Tensor]]]:
    return [(term.constant, list(term.axes)) for term in label_index.macs]
