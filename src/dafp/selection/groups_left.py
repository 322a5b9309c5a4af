"""Targets, scores and damage tables for a graph of which some groups are kept after all."""

from dataclasses import replace

from ..criteria.scores import Scores
from ..errors import TargetError
from ..graph.channel_graph import ChannelGraph
from .damage_table import DamageTable


def share_of_groups_left(share: float, unit: str, graph: ChannelGraph, left: ChannelGraph) -> float:
    """The share of what `left` can prune that is this share of what `graph` can prune.

    Only filters are counted relative to the groups; params and macs are shares of the network.
    """
    if unit != "filters" or left.filters == graph.filters:
        return share
    removed = share * graph.filters
    if removed >= left.filters:
        newest = left.kept[-1]
        raise TargetError(
            f"target={share:g} of filters cannot be reached: it removes {removed:.0f} of "
            f"{graph.filters}, of which only {left.filters} can be pruned. Ask for less; "
            f"{newest.name!r} is kept: {newest.reason}"
        )
    return removed / left.filters


def scores_left(scores: Scores, graph: ChannelGraph) -> Scores:
    """The scores of the groups of this graph."""
    names = {group.name for group in graph.groups}
    return {name: score for name, score in scores.items() if name in names}


def table_left(table: DamageTable | None, graph: ChannelGraph) -> DamageTable | None:
    """The damage of the groups of this graph."""
    if table is None:
        return None
    names = {group.name for group in graph.groups}
    return replace(table, groups=tuple(one for one in table.groups if names.issuperset(one.names)))
