"""Bayesian pruning by dropout noise, layer by layer (after Zhou et al., 2018).

Every channel is multiplied by noise θ ~ N(μ, σ²), whose posterior is learned with the network. The
prior N(0, s²) is concentrated at zero as far as the data allow: with the best s² = μ² + σ², the
divergence of posterior and prior is ½·log(1 + μ²/σ²). Channels with a small signal-to-noise ratio
μ²/σ² are removed, one layer after the other, while the noise of later layers is still learned.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from ..criteria.scores import Scores
from ..graph.channel_graph import Group, Slot
from ..network.named_tensors import tensors_of
from ..selection.rules import global_ranking
from ..selection.targets import removed_share
from .method import Method, Task
from .taylor import gate_changes, gates, plan
from .zeroing import Channels, choose, filter_groups, without, zero

START = 0.1  # σ²/μ² at the start
RATE = 0.02  # of Adam, for μ and log σ²
DONE = 0.8  # share of the training after which all layers are pruned
SMALL = 1e-2  # |θ| that is drawn, at least: the gradient of θ is divided by it


def divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """min over s² of KL(N(μ, σ²) ‖ N(0, s²)) = ½·log(1 + μ²/σ²), for every channel."""
    return 0.5 * torch.log1p(mean.square() * torch.exp(-log_variance))


class Noise:
    """Multiplies channels by noise, learns its posterior, and closes layer after layer."""

    def __init__(self, task: Task, optimizer: Optimizer) -> None:
        self.task, config = task, task.config
        self.groups = filter_groups(task.graph)
        sizes = {group.name: group.size for group in self.groups}
        everything = {name: torch.arange(1.0, size + 1) for name, size in sizes.items()}
        # raises early if the target cannot be reached
        choose(task, everything, config.target, global_ranking)
        self.slots = gates(task.graph)
        self.mean = {name: torch.ones(size) for name, size in sizes.items()}
        self.log_variance = {n: torch.full((size,), math.log(START)) for n, size in sizes.items()}
        self.gone: Channels = {n: torch.zeros(size, dtype=torch.bool) for n, size in sizes.items()}
        self.closed: list[str] = []
        self.learned = [*self.mean.values(), *self.log_variance.values()]
        self.adam = Adam(self.learned, RATE)
        self.weight = 1 / task.data.sizes["train"]  # of the divergence: the loss is a mean
        self.step = self.epoch = 0
        self._draw()
        self.handles = [
            task.model.get_submodule(module).register_forward_hook(self._hook(group, slot, axis))
            for group in self.groups
            for module, slot, axis in multiplied(task.model, group)
        ]
        optimizer.register_step_pre_hook(self._learn)
        optimizer.register_step_post_hook(self._after_step)

    def end_epoch(self) -> Mapping[str, Any]:
        task, config = self.task, self.task.config
        self.epoch += 1
        share = min(1.0, self.epoch / (DONE * config.sparse.epochs))
        names = [group.name for group in self.groups]
        due = names[: math.ceil(share * len(names) - 1e-9)]
        if self.epoch == config.sparse.epochs:
            due = names
        chosen = choose(task, self._ranked(), config.target, global_ranking)
        for name in [name for name in due if name not in self.closed]:
            self._close(name, chosen[name])
        if self.epoch == config.sparse.epochs:
            for handle in self.handles:
                handle.remove()
        removed = removed_share(task.graph, without(task.graph, self.gone), config.unit)
        total = sum(
            float(divergence(self.mean[name], self.log_variance[name]).sum())
            for name in names
            if name not in self.closed
        )
        return {"sparsity": removed, "target": config.target, "divergence": total}

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "epoch": self.epoch,
            "closed": list(self.closed),
            "mean": {name: value.clone() for name, value in self.mean.items()},
            "log_variance": {name: value.clone() for name, value in self.log_variance.items()},
            "gone": {name: value.clone() for name, value in self.gone.items()},
            "adam": self.adam.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step, self.epoch, self.closed = state["step"], state["epoch"], list(state["closed"])
        for name in self.mean:
            self.mean[name].copy_(state["mean"][name])
            self.log_variance[name].copy_(state["log_variance"][name])
        self.gone = dict(state["gone"])
        self.adam.load_state_dict(state["adam"])
        self._draw()

    def _draw(self) -> None:
        """Draw the noise of the next step: the same on every rank and after a restart."""
        draw = torch.Generator().manual_seed(self.task.config.seed * 1_000_003 + self.step)
        self.noise, self.theta = {}, {}
        for name, mean in self.mean.items():
            noise = torch.randn(len(mean), generator=draw)
            theta = mean + torch.exp(0.5 * self.log_variance[name]) * noise
            if name in self.closed:
                theta = mean
            self.noise[name] = noise
            self.theta[name] = torch.where(
                theta.abs() < SMALL, SMALL * torch.where(theta < 0, -1.0, 1.0), theta
            )

    def _hook(self, group: Group, slot: Slot, axis: int) -> Callable[..., Tensor]:
        def hook(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            values = (self.theta if module.training else self.mean)[group.name]
            factors = torch.ones(output.shape[axis])
            factors[list(slot.index)] = values
            shape = [1] * output.dim()
            shape[axis] = -1
            return output * factors.view(shape).to(output)

        return hook

    @torch.no_grad()
    def _learn(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        """A step on μ and log σ² by the gradient of the loss and of the divergence.

        Gates that are multiplied by θ have γ·∂L/∂γ + β·∂L/∂β = θ·∂L/∂θ.
        """
        for name, change in gate_changes(self.task.model, self.task.graph, self.slots).items():
            mean, log_variance = self.mean[name], self.log_variance[name]
            gradient = change / self.theta[name]
            if name in self.closed:
                mean.grad, log_variance.grad = None, None
                continue
            ratio = mean.square() / (mean.square() + torch.exp(log_variance))
            mean.grad = gradient + self.weight * ratio / torch.where(mean == 0, 1.0, mean)
            by_deviation = 0.5 * torch.exp(0.5 * log_variance) * self.noise[name]
            log_variance.grad = gradient * by_deviation - 0.5 * self.weight * ratio
        self.adam.step()

    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        self.step += 1
        zero(self.task.model, self.slots, self.gone)
        self._draw()

    def _ranked(self) -> Scores:
        """μ²/σ² of open layers; what is decided in closed layers stays as it is."""
        found = {}
        for name, mean in self.mean.items():
            ratio = mean.square() * torch.exp(-self.log_variance[name])
            decided = torch.where(self.gone[name], 0.0, torch.finfo().max)
            # not quite 0: what is removed already ranks below
            found[name] = decided if name in self.closed else ratio.clamp(min=torch.finfo().tiny)
        return found

    @torch.no_grad()
    def _close(self, name: str, gone: Tensor) -> None:
        """Remove the channels of a layer, and multiply the gates of the others by μ."""
        tensors, size = tensors_of(self.task.model), len(gone)
        for slot in self.slots[name]:
            weight = tensors[slot.param]
            factors = torch.ones(weight.shape[slot.dim])
            factors[list(slot.index)] = self.mean[name].repeat_interleave(len(slot.index) // size)
            shape = [1] * weight.dim()
            shape[slot.dim] = -1
            weight.mul_(factors.view(shape).to(weight))
        self.mean[name].fill_(1.0)
        self.gone[name] = gone.clone()
        self.closed.append(name)
        zero(self.task.model, self.slots, self.gone)
        self._draw()


def multiplied(model: nn.Module, group: Group) -> list[tuple[str, Slot, int]]:
    """(module, slot, axis of the channels in its output) of the layers that the noise follows."""
    found = []
    for slot in group.scales or group.producers:
        module = slot.param.rpartition(".")[0]
        found.append(
            (module, slot, -1 if isinstance(model.get_submodule(module), nn.Linear) else 1)
        )
    return found


METHOD = Method("bayes", plan, Noise, from_baseline=True)
