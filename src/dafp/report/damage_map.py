"""The page of a damage table: how much the outputs suffer when one layer alone is pruned."""

import math
from pathlib import Path

from ..selection.damage_table import DamageTable, GroupDamage
from ..storage.atomic_write import write_atomically
from .charts import Chart
from .heat_chart import Square, heat_chart
from .page import Cell, Html, Section, figure, page, paragraph, table

RATIOS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)


def write_damage(found: DamageTable, path: Path) -> Path:
    """Write the page of a damage table, an HTML file; return its path.

    Args:
        found: the table, from `dafp.recovery.measure_damage`
        path: the file to write

    Returns:
        The path.
    """
    text = page("Damage by layer", [Section("", damage_blocks(found))], "", "Written by dafp.")
    write_atomically(path, text.encode())
    return path


def damage_blocks(found: DamageTable) -> list[Html]:
    """An explanation, the heat map, and a table of its numbers."""
    metric = found.metric[:1].upper() + found.metric[1:]
    text = (
        f"{metric} on {found.images} images when this layer alone is pruned and its consumers are "
        "rebuilt. Measured numbers are marked with *; the others follow the "
        "order of the channels. The redder a cell, the greater the damage."
    )
    head = ("layer", "channels", *(f"−{ratio:.0%}" for ratio in RATIOS))
    rows: list[list[str | Cell]] = [
        [_name(group), str(group.size), *(_number(group, ratio) for ratio in RATIOS)]
        for group in found.groups
    ]
    return [
        paragraph(text),
        figure(damage_chart(found), "Damage by layer", "share removed of one layer alone"),
        table(f"{found.metric} when one layer is pruned", head, rows),
    ]


def damage_chart(found: DamageTable) -> Chart:
    """The damage of each layer at each ratio."""
    columns = {_name(group): [_square(group, ratio) for ratio in RATIOS] for group in found.groups}
    label = f"{found.metric} with 90 % of one layer removed: " + "; ".join(
        f"{_name(group)} {group.at(_removed(group, 0.9)):.3g}" for group in found.groups
    )
    return heat_chart(label, columns, RATIOS)


def _square(group: GroupDamage, ratio: float) -> Square:
    count = _removed(group, ratio)
    damage = group.at(count)
    loss = 1 - math.exp(-damage) if count else None
    return Square(_number(group, ratio), f"{damage:.2g}", loss)


def _number(group: GroupDamage, ratio: float) -> str:
    count = _removed(group, ratio)
    return f"{group.at(count):.3g}" + ("*" if count in group.removed else "")


def _removed(group: GroupDamage, ratio: float) -> int:
    return min(group.size - 1, round(ratio * group.size))


def _name(group: GroupDamage) -> str:
    return " + ".join(group.names)
