"""Widths by evolution (Zhou et al., 2019): a population of width vectors, and its knee."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from .. import criteria
from ..graph.plan import PruningPlan
from ..network.calling import eval_mode
from ..recovery.width_search import search_widths
from .method import Method, Task
from .zeroing import filter_scores

IMAGES = 1000  # of the validation part, at most
POPULATION, GENERATIONS = 16, 10


def plan(task: Task) -> PruningPlan:
    """Search the widths; in every layer the channels with the smallest loss by removal go first."""
    config, images = task.config, task.calibration_data()
    validation = validation_data(task)

    def score(model: nn.Module, graph: object) -> dict[str, torch.Tensor]:
        return criteria.loss_by_removal(task.model, task.graph, images)

    @torch.no_grad()
    def loss(model: nn.Module) -> float:
        with eval_mode(model):
            total = sum(float(cross_entropy(model(x), y, reduction="sum")) for x, y in validation)
        return total / sum(len(y) for _, y in validation)

    return search_widths(
        task.model,
        task.graph,
        filter_scores(task, score),
        loss,
        config.target,
        config.unit,
        batches=[x for x, _ in images],
        **task.floors,
        population=POPULATION,
        generations=GENERATIONS,
        seed=config.seed,
    )


def validation_data(task: Task) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The first validation images; training images if the run holds none out."""
    size = min(IMAGES, task.data.sizes["val"])
    if not size:
        return task.calibration_data(max(1, IMAGES // task.data.classes))
    device = next(task.model.parameters()).device
    found, count = [], 0
    for x, y in task.data.batches("val", batch_size=size, device=device):
        found.append((x[: size - count], y[: size - count]))
        count += len(found[-1][1])
        if count == size:
            break
    return found


METHOD = Method("evolution", plan)
