"""Which tensor can take a constant that is added to the outputs of a consumer."""

from .label_index import LabelIndex
from .trace_log import Consumer


def mean_target(label_index: LabelIndex, consumer: Consumer) -> tuple[str | None, float]:
    """The bias of a consumer, or the running mean of the BN after it; and the sign of a change.

    Adding `sign · s` to the tensor adds s to the outputs of the consumer. None: there is neither.
    """
    if label_index.shifts.get(consumer.weight):
        return label_index.shifts[consumer.weight], 1.0
    if consumer.output is None or consumer.weight not in label_index.shifts:
        return None, 0.0
    norms = label_index.norms_by_input
    behind = norms.get((int(consumer.output[0]), consumer.output.numel()))
    mean = f"{behind.rpartition('.')[0]}.running_mean" if behind else ""
    return (mean if mean in label_index.shapes else None), -1.0
