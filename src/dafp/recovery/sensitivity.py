"""Layer sensitivity: the accuracy when one layer at a time is pruned, at several ratios."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..criteria.scores import Scores
from ..errors import FileError
from ..graph.channel_graph import ChannelGraph, Group, check_same_model
from ..network.model_copy import deep_copy
from ..network.named_tensors import tensors_of
from ..pruning.masking import zero_consumers
from ..selection.rules import uniform

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


@dataclass(frozen=True)
class LayerCurve:
    """The accuracy at each ratio when one group of channels is pruned alone."""

    name: str
    kind: str  # "filter" or "selection"
    channels: int
    removed: tuple[int, ...]  # channels, at each ratio
    accuracy: tuple[float | None, ...]  # None: it cannot be pruned alone (parts of an even split)


@dataclass(frozen=True)
class Sensitivity:
    """The accuracy of a network, and of the same network with one layer pruned."""

    accuracy: float
    ratios: tuple[float, ...]
    layers: tuple[LayerCurve, ...]
    about: Mapping[str, Any] = field(default_factory=dict)  # model, data, images, criterion, …

    def to_json(self) -> str:
        """The result as JSON text; `sensitivity_from_json` reads it."""
        value = {"accuracy": self.accuracy, "ratios": self.ratios, "about": dict(self.about)}
        return json.dumps({**value, "layers": [vars(layer) for layer in self.layers]})


def layer_sensitivity(
    model: nn.Module,
    graph: ChannelGraph,
    scores: Scores,
    judge: Callable[[nn.Module], float],
    *,
    ratios: Sequence[float] = RATIOS,
    compensate: bool = False,
    done: Callable[[], None] = lambda: None,
) -> Sensitivity:
    """Measure the accuracy without the lowest-scored channels of one group, for every group.

    Args:
        model: the network that was traced
        graph: its channel graph, from `dafp.trace`
        scores: group name -> one score per channel, from a criterion
        judge: function of a model that returns its accuracy; it receives a masked copy, the same
            object every time
        ratios: shares of the channels to remove
        compensate: mean compensation, as in `dafp.mask`
        done: called after every group

    Returns:
        One curve of accuracies per group.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1))
        >>> x = torch.randn(8, 1, 8, 8)
        >>> graph = dafp.trace(model, x)
        >>> whole = model(x).argmax(1)
        >>> result = dafp.recovery.layer_sensitivity(
        ...     model, graph, dafp.criteria.l1_norm(model, graph),
        ...     lambda model: float((model(x).argmax(1) == whole).float().mean()),
        ...     ratios=(0.25, 0.5),
        ... )
        >>> result.accuracy, result.layers[0].name, result.layers[0].removed
        (1.0, '0', (1, 2))
    """
    check_same_model(model, graph)
    work = deep_copy(model)
    whole = judge(work)

    def curve(group: Group) -> LayerCurve:
        seen, removed, found = {0: whole}, [], []
        for ratio in ratios:
            asked = uniform({group.name: scores[group.name]}, ratio)
            plan = graph.resolve(asked)
            gone = group.size - len(plan.keep[group.name])
            if gone not in seen:
                zero_consumers(work, graph, plan, compensate)
                seen[gone] = judge(work)
                _restore(work, model)
            removed.append(gone)
            alone = gone == group.size - len(asked.keep[group.name])
            found.append(seen[gone] if alone or gone else None)
        done()
        return LayerCurve(group.name, group.kind, group.size, tuple(removed), tuple(found))

    return Sensitivity(whole, tuple(ratios), tuple(curve(group) for group in graph.groups))


def sensitivity_from_json(text: str, where: str) -> Sensitivity:
    """Read the text of `to_json`; FileError if it is anything else."""
    try:
        value = json.loads(text)
        ratios = tuple(_share(ratio) for ratio in value["ratios"])
        layers = tuple(
            LayerCurve(
                str(row["name"]), str(row["kind"]), int(row["channels"]),
                tuple(int(count) for count in row["removed"]),
                tuple(None if a is None else _share(a) for a in row["accuracy"]),
            )
            for row in value["layers"]
        )  # fmt: skip
        if any({len(row.removed), len(row.accuracy)} != {len(ratios)} for row in layers):
            raise ValueError("a layer does not have a number for every ratio")
        if len(ratios) < 2 or list(ratios) != sorted(set(ratios)):
            raise ValueError("ratios are two or more, in rising order")
        return Sensitivity(_share(value["accuracy"]), ratios, layers, dict(value["about"]))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise FileError(
            f"{where} is damaged ({error!r}); delete it, or run dafp sensitivity again"
        ) from error


def _share(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ValueError(f"{value!r} is not a share")
    return float(value)


@torch.no_grad()
def _restore(work: nn.Module, model: nn.Module) -> None:
    """Copy the weights back: this is faster than another copy of the model."""
    old = tensors_of(model)
    for name, tensor in tensors_of(work).items():
        tensor.copy_(old[name])
