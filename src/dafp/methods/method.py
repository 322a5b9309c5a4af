"""What a pruning method is: what it adds to training, and how it arrives at a plan."""

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer

from ..config import Config
from ..data import DataSet
from ..graph import ChannelGraph
from ..plan import PruningPlan
from ..train import Addition


@dataclass(frozen=True)
class Task:
    """A model in the hands of a method."""

    model: nn.Module
    graph: ChannelGraph
    config: Config
    data: DataSet


@dataclass(frozen=True)
class Method:
    """One method of the tables.

    `plan` is a function of the trained weights alone, so that a run that was interrupted comes to
    the same plan; what a method learned in training it leaves in the weights (a dead channel is
    one of zeros).
    """

    name: str
    plan: Callable[[Task], PruningPlan]
    train: Callable[[Task, Optimizer], Addition] | None = None  # None: prunes the baseline as it is
    from_baseline: bool = False  # training goes on from the baseline, not from fresh weights
    finetunes: bool = True
    training: str = ""  # methods of one name here train alike, whatever the target, p and
    # criterion: a sweep trains once for all of them. "": the training is this method's own
