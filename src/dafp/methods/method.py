"""The interface of a pruning method: what it adds to training, and how it chooses a plan."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from .. import selection
from ..criteria.scores import Scores
from ..data import DataSet
from ..graph.channel_graph import ChannelGraph
from ..graph.plan import PruningPlan
from ..selection.rules import Rule
from ..selection.targets import to_target
from ..training.config import Config
from ..training.loop import TrainingHook
from ..training.memory_format import supports_channels_last


@dataclass(frozen=True)
class Task:
    """The input of a method: a model, its graph, and the configuration and data of the run."""

    model: nn.Module = field(repr=False)
    graph: ChannelGraph = field(repr=False)
    config: Config
    data: DataSet = field(repr=False)

    @property
    def floors(self) -> dict[str, Any]:
        """The widths that every layer may have, as keywords of rules and selections."""
        config = self.config
        return {"min_channels": max(1, config.min_channels), "round_to": config.round_to or 1}

    def rule(self, own: Rule) -> Rule:
        """The rule of the configuration; its default leaves each method its own."""
        name = self.config.rule
        found: Rule = own if name == "own" else getattr(selection, name)
        return found

    def plan_by(self, scores: Scores, own: Rule) -> PruningPlan:
        """The plan that meets the target, by the method's own rule or that of the configuration."""
        config = self.config
        rule = self.rule(own)
        return to_target(scores, self.graph, config.target, config.unit, rule, **self.floors)

    def calibration_data(self, per_class: int = 10) -> list[tuple[Tensor, Tensor]]:
        """`per_class` training images of every class, not augmented, chosen by the seed."""
        device = next(self.model.parameters()).device
        left, found = Counter(dict.fromkeys(range(self.data.classes), per_class)), []
        batches = self.data.batches(
            "train",
            batch_size=min(self.config.batch_size, self.data.sizes["train"]),
            seed=self.config.seed,
            augment=False,
            device=device,
            channels_last=self.config.channels_last and supports_channels_last(self.model),
        )
        for x, y in batches:
            take = []
            for place, label in enumerate(y.tolist()):
                if left[label]:
                    left[label] -= 1
                    take.append(place)
            if take:
                found.append((x[take], y[take]))
            if not left.total():
                break
        return found


@dataclass(frozen=True)
class Method:
    """A pruning method: what it adds to training, and how it chooses a plan.

    `plan` must not depend on the state of the training hook, so that an interrupted run reaches the
    same plan. What a method decides in training is stored in the weights: those of a channel to
    remove are zero.
    """

    name: str
    plan: Callable[[Task], PruningPlan]
    train: Callable[[Task, Optimizer], TrainingHook] | None = None  # None: no sparse training
    prepare: Callable[[Task], None] | None = None  # changes the weights before the first step
    from_baseline: bool = False  # sparse training starts from the baseline, not from fresh weights
    # returns the model with the weights with which to prune it by this plan; None: as it is
    rebuild: Callable[[Task, PruningPlan], nn.Module] | None = None
    # returns a task with a wider network of new weights, and its plan in place of the chosen one
    expand: Callable[[Task, PruningPlan], tuple[Task, PruningPlan]] | None = None
    # returns the p at which local_threshold gives the plan (nearly); None: no such threshold
    threshold: Callable[[Task, PruningPlan], float | None] | None = None
    finetunes: bool = True
    decays_lr: bool = False  # sparse training has learning rate decay, as in the original paper
    # Name of a sparse training that does not depend on target, p and criterion: a sweep runs it
    # once for all methods with this name. "": the method has a sparse training of its own
    shared_training: str = ""
