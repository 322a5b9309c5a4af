"""Expected damage: the share of the output variance that removed channels cause, without data."""

import torch

from ..criteria.scores import Scores
from ..graph.channel_graph import ChannelGraph
from .damage_table import DamageTable, GroupDamage, balanced_units
from .rules import check_scores

EXPECTED = "expected loss of variance, relative to what is left"


def expected_damage(graph: ChannelGraph, scores: Scores) -> DamageTable:
    """A damage table from scores alone: no data, nothing is measured.

    The damage of removing channels from a group is s / (1 − s), where s is their share of the
    group's squared scores. With `criteria.shift_aware`, it is the variance that the outputs of the
    consumers lose, relative to what is left, if channels are independent. `selection.least_damage`
    chooses widths by it.

    Args:
        graph: the channel graph of the network, from `dafp.trace`
        scores: group name -> one score per channel, from `dafp.criteria.shift_aware`

    Returns:
        The table. Groups that must keep equal widths are one entry.

    Examples:
        >>> model = nn.Sequential(
        ...     nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1)
        ... )
        >>> graph = dafp.trace(model, torch.zeros(2, 1, 8, 8))
        >>> scores = {"0": torch.tensor([1.0, 3.0, 1.0, 3.0])}
        >>> table = dafp.selection.expected_damage(graph, scores)
        >>> table.groups[0].order, round(table.groups[0].at(2), 4)
        (((0, 2, 1, 3),), 0.1111)
    """
    check_scores(scores)
    entries = []
    for names in balanced_units(graph):
        size = graph[names[0]].size
        if size < 2 or any(name not in scores for name in names):
            continue
        order = tuple(tuple(scores[name].argsort(stable=True).tolist()) for name in names)
        squares = torch.stack(
            [scores[name].double().cpu().square().sort().values for name in names]
        )
        shares = squares.cumsum(1) / squares.sum(1, keepdim=True).clamp(min=1e-30)
        shares = shares.clamp(max=1 - 1e-9)
        damage = (shares / (1 - shares)).sum(0)
        curve = (0.0, *damage.tolist())
        half = size // 2
        entries.append(GroupDamage(names, size, (half,), (curve[half],), order, curve))
    return DamageTable(tuple(entries), EXPECTED)
