"""Selection: from scores, or measured damage, to a plan of the channels to keep."""

from .damage_table import DamageTable, GroupDamage
from .expected_damage import expected_damage
from .least_damage import least_damage
from .rules import Rule, global_ranking, local_threshold, uniform
from .target_value import Target
from .targets import Measure, reach, removed_share, to_target

__all__ = [
    "DamageTable",
    "GroupDamage",
    "Measure",
    "Rule",
    "Target",
    "expected_damage",
    "global_ranking",
    "least_damage",
    "local_threshold",
    "reach",
    "removed_share",
    "to_target",
    "uniform",
]
