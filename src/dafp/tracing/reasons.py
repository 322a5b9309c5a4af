"""Why channels are kept: one reason per class of tied labels, the first that is given."""

import torch
from torch import Tensor

from ..graph.trace_log import Location

Reason = tuple[Location, str]
NO_OPERATOR: Reason = (Location("forward", ""), "no operator uses it")


class Reasons:
    """Class -> where and why it is kept. There may be millions of classes, but few reasons."""

    def __init__(self, classes: int) -> None:
        self.number_of = torch.full((classes,), -1)  # class -> position of its reason
        self.known: list[Reason] = []

    def add(self, roots: Tensor, where: Location, reason: str) -> None:
        """Keep these classes for this reason, unless they have one."""
        self.set(roots[self.number_of[roots] < 0], where, reason)

    def set(self, roots: Tensor, where: Location, reason: str) -> None:
        """Keep these classes for this reason."""
        self.number_of[roots] = len(self.known)
        self.known.append((where, reason))

    def copy(self) -> "Reasons":
        new = Reasons(0)
        new.number_of, new.known = self.number_of.clone(), list(self.known)
        return new

    @property
    def kept(self) -> Tensor:
        """Class -> whether it is kept."""
        return self.number_of >= 0

    def by_reason(self, roots: Tensor) -> dict[Reason, Tensor]:
        """Reason -> the positions in `roots` of the classes that it keeps, the first one first."""
        numbers = self.number_of[roots]
        found: dict[Reason, list[Tensor]] = {}
        for number in numbers.unique().tolist():
            why = self.known[number] if number >= 0 else NO_OPERATOR
            found.setdefault(why, []).append((numbers == number).nonzero().flatten())
        places = {why: torch.cat(parts).sort().values for why, parts in found.items()}
        return dict(sorted(places.items(), key=lambda item: int(item[1][0])))
