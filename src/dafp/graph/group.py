"""Groups of channels, the tensor entries that belong to them, and channels that are kept."""

from dataclasses import dataclass
from typing import NamedTuple

from .printing import shortened


@dataclass(frozen=True)
class Slot:
    """Entries of one axis of one tensor that belong to the channels of a group.

    `index` lists the entries channel by channel. If a channel has k entries (a linear layer after
    a flatten), they are consecutive: `torch.tensor(index).view(group.size, -1)[c]` are the entries
    of channel c.

    Examples:
        >>> dafp.Slot("conv1.weight", 0, tuple(range(64)))
        Slot(param='conv1.weight', dim=0, index=(0, 1, …, 63))
    """

    param: str
    dim: int
    index: tuple[int, ...]

    def __repr__(self) -> str:
        return f"Slot(param={self.param!r}, dim={self.dim}, index={shortened(self.index)})"


@dataclass(frozen=True)
class Group:
    """Channels that are scored together. Each of them can be removed on its own.

    Removing channel c removes its entries from the slots of all four roles.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 3))
        >>> group = dafp.trace(model, torch.zeros(1, 3, 8, 8))["0"]
        >>> group.size, group.kind
        (4, 'filter')
        >>> group.scales
        (Slot(param='1.weight', dim=0, index=(0, 1, 2, 3)),)
        >>> [slot.param for slot in group.followers]
        ['0.bias', '1.bias', '1.running_mean', '1.running_var']
    """

    name: str  # module of the first producer, [a:b] for a part of it; of a selection, its BN
    size: int
    kind: str  # "filter", or "selection": inputs of one consumer of a residual stream
    producers: tuple[Slot, ...]  # filters whose outputs are the channels
    scales: tuple[Slot, ...]  # BN scales (γ) that multiply them
    consumers: tuple[Slot, ...]  # weights that take them as input
    followers: tuple[Slot, ...] = ()  # biases, shifts, statistics, slopes: sliced too

    def __repr__(self) -> str:
        names = ", ".join(
            f"{role}=[{some(tensors_of_slots(getattr(self, role)), 3)}]"
            for role in ("producers", "scales", "consumers", "followers")
        )
        return f"Group({self.name!r}, size={self.size}, kind={self.kind!r}, {names})"


class Kept(NamedTuple):
    """Channels of one layer that are kept, and the reason.

    Examples:
        >>> model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))
        >>> (kept,) = dafp.trace(model, torch.zeros(1, 3, 8, 8)).kept
        >>> kept.name, kept.size, kept.reason
        ('2', 2, 'an output of the model')
    """

    name: str  # the layer that produces them, with [a:b] if they are only a part of it
    size: int
    op: str  # the operator because of which they are kept
    module: str  # the module whose forward calls it, "" for the model itself
    reason: str
    kind: str = "filter"  # or "selection": inputs of a consumer, not filters


def some(names: list[str], limit: int = 6) -> str:
    """The first names, and an ellipsis if there are more."""
    return ", ".join(names[:limit]) + (", …" if len(names) > limit else "")


def tensors_of_slots(slots: tuple[Slot, ...]) -> list[str]:
    """The names of their tensors."""
    return [slot.param for slot in slots]
