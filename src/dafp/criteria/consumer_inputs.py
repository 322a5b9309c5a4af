"""Which group and channel each input of a consumer belongs to, for criteria that use hooks."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..calibration.consumers import calibrated_consumers
from ..graph.channel_graph import ChannelGraph


@dataclass(frozen=True)
class ConsumerInputs:
    """The inputs of one convolution or linear layer that consumes channels."""

    module: str
    weight: str
    is_linear: bool
    group_of: Tensor  # input -> number of its group, -1: it is kept
    channel_of: Tensor  # input -> channel of that group

    @property
    def axis(self) -> int:
        """The axis of the inputs in what the layer receives."""
        return -1 if self.is_linear else 1


def consumer_inputs(model: nn.Module, graph: ChannelGraph) -> list[ConsumerInputs]:
    """The consumers that are layers with a forward of their own, in the order in which they run."""
    found, label_index = [], graph.label_index
    for consumer in calibrated_consumers(model, graph)[0]:
        labels = consumer.labels.flatten()
        if consumer.channels is not None:  # after a flatten: in the order of the layer's inputs
            whole = label_index.labels(consumer.weight, 1)
            assert whole is not None
            labels = whole
        known = labels >= 0
        group = torch.where(known, label_index.group_of[labels.clamp(min=0)], -1)
        layer = model.get_submodule(consumer.module)
        found.append(
            ConsumerInputs(
                consumer.module,
                consumer.weight,
                isinstance(layer, nn.Linear),
                group,
                label_index.channel_of[labels.clamp(min=0)],
            )
        )
    return found
