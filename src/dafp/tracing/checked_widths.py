"""Widths that a forward checks: `assert x.shape[1] == self.channels`."""

from collections.abc import Iterator, Sequence

from torch import Tensor, nn

from ..graph.label_index import WidthAttribute
from ..graph.trace_log import RecordedCall
from .labels import varied


def checked_widths(
    model: nn.Module, recorded: RecordedCall, alike: Sequence[RecordedCall]
) -> Iterator[tuple[WidthAttribute, ...]]:
    """Attributes that may be compared with the width of the input of a call, which was not reached.

    `alike` are the same calls in other modules of the class: they make the same check, so that one
    fix serves all of them.
    """
    for levels in range(len(_path(recorded)) + 1):
        owner = model.get_submodule(_owner(recorded, levels))
        if type(owner).__module__.startswith("torch.nn."):
            continue  # these compare shapes of tensors only
        for attribute, value in vars(owner).items():
            if type(value) is not int or _checked(model, recorded, levels, attribute) is None:
                continue
            found = (_checked(model, call, levels, attribute) for call in alike)
            yield tuple(count for count in found if count is not None)


def _checked(
    model: nn.Module, call: RecordedCall, levels: int, attribute: str
) -> WidthAttribute | None:
    """The attribute of the module that many levels above the call, if it equals a width there."""
    if levels > len(_path(call)):
        return None
    owner = _owner(call, levels)
    value = getattr(model.get_submodule(owner), attribute, None)
    for vector in _widths(call):
        if vector.numel() == value:
            return WidthAttribute(owner, attribute, None, vector)
    return None


def _path(call: RecordedCall) -> list[str]:
    return call.where.module.split(".") if call.where.module else []


def _owner(call: RecordedCall, levels: int) -> str:
    """The name of the module that many levels above the one that made the call."""
    path = _path(call)
    return ".".join(path[: len(path) - levels])


def _widths(call: RecordedCall) -> Iterator[Tensor]:
    """The channels of the inputs along every axis."""
    for facet in call.inputs:
        for axis in varied(facet):
            first = [slice(None) if a == axis else 0 for a in range(facet.dim())]
            yield facet[tuple(first)].reshape(-1)
