"""What can be removed from a network: the channel graph, and the plan that says what stays."""

from .channel_graph import ChannelGraph, Group, Kept, Slot
from .plan import PruningPlan

__all__ = ["ChannelGraph", "Group", "Kept", "PruningPlan", "Slot"]
