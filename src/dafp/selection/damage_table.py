"""The damage table: how much the outputs suffer when one group of channels is pruned alone."""

import json
import math
from dataclasses import dataclass
from typing import Any

from ..errors import FileError
from ..graph.channel_graph import ChannelGraph
from ..graph.printing import at_most


@dataclass(frozen=True)
class GroupDamage:
    """The damage of pruning one group alone, or several that must keep equal widths."""

    names: tuple[str, ...]
    size: int  # channels of each of them
    removed: tuple[int, ...]  # channels, at each measurement, ascending
    damage: tuple[float, ...]  # at each measurement
    order: tuple[tuple[int, ...], ...]  # channels of each group; the first is removed first
    curve: tuple[float, ...]  # error according to the criterion after removing 0, 1, … channels

    def at(self, count: int) -> float:
        """The damage of removing `count` channels.

        The curve of the criterion, scaled to meet the measurements: the factor is interpolated in
        the logarithm between two measurements and constant outside of them.
        """
        if count == 0:
            return 0.0
        factors = [
            math.log(max(damage, 1e-12) / max(self.curve[n], 1e-12))
            for n, damage in zip(self.removed, self.damage, strict=True)
        ]
        points = list(zip(self.removed, factors, strict=True))
        below = [p for p in points if p[0] <= count] or points[:1]
        above = [p for p in points if p[0] >= count] or points[-1:]
        (n, low), (m, high) = below[-1], above[0]
        factor = low if m == n else low + (high - low) * (count - n) / (m - n)
        return math.exp(factor) * max(self.curve[count], 1e-12)


@dataclass(frozen=True)
class DamageTable:
    """The damage of every group: one measurement that serves every target.

    `dafp.recovery.measure_damage` makes it; `dafp.selection.least_damage` chooses widths by it.
    """

    groups: tuple[GroupDamage, ...]
    metric: str  # what damage is: "KL divergence", "relative squared error", "score lost"
    images: int = 0

    def to_json(self) -> str:
        """The table as JSON text; `from_json` reads it."""
        value = {"dafp_damage": 1, "metric": self.metric, "images": self.images}
        return json.dumps({**value, "groups": [vars(group) for group in self.groups]})

    @classmethod
    def from_json(cls, text: str) -> "DamageTable":
        """Read the text of `to_json`; FileError if it is anything else."""
        try:
            value = json.loads(text)
            if value["dafp_damage"] != 1:
                raise ValueError(f"format {value['dafp_damage']!r}; this version reads 1")
            groups = tuple(_group(row) for row in value["groups"])
            return cls(groups, str(value["metric"]), int(value["images"]))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FileError(
                f"this is not a damage table: {error!r}; expected what to_json() writes"
            ) from error

    def __str__(self) -> str:
        lines = [f"{self.metric} on {self.images} images, each group pruned alone"]
        for group in self.groups:
            pairs = zip(group.removed, group.damage, strict=True)
            cells = ", ".join(f"{damage:.3g} without {n}" for n, damage in pairs)
            lines.append(f"  {' + '.join(group.names)}: {group.size} channels; {cells}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return at_most(str(self).splitlines())


def balanced_units(graph: ChannelGraph) -> list[tuple[str, ...]]:
    """Groups that must keep equal widths, together; every other group alone."""
    unit_of = list(range(len(graph.groups)))
    for split in graph.label_index.even_splits:
        inside = {
            n for part in split.parts for n in graph.label_index.group_of[part].tolist() if n >= 0
        }
        units = {unit_of[n] for n in inside}
        unit_of = [min(units) if unit in units else unit for unit in unit_of]
    found: dict[int, list[str]] = {}
    for group, unit in zip(graph.groups, unit_of, strict=True):
        found.setdefault(unit, []).append(group.name)
    return [tuple(names) for names in found.values()]


def _group(row: dict[str, Any]) -> GroupDamage:
    group = GroupDamage(
        tuple(str(name) for name in row["names"]),
        int(row["size"]),
        tuple(int(n) for n in row["removed"]),
        tuple(float(d) for d in row["damage"]),
        tuple(tuple(int(c) for c in order) for order in row["order"]),
        tuple(float(e) for e in row["curve"]),
    )
    if len(group.curve) != group.size + 1 or len(group.removed) != len(group.damage):
        raise ValueError(f"the numbers of {group.names} do not fit its size")
    return group
