"""The L1 penalty on BN scales, as hooks of an optimizer."""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from ..errors import TrainingError
from ..graph.channel_graph import ChannelGraph
from ..network.named_tensors import tensors_of


class Scale(NamedTuple):
    """One vector of scales, and the channel that each entry scales (-1: not prunable)."""

    name: str
    weight: nn.Parameter
    channel: Tensor  # on the CPU
    penalty: Tensor  # λ of every entry, on the device of the weight
    shift: nn.Parameter | None  # β of the same BN, if it is trained
    shift_decay: Tensor  # distance by which β of dead entries approaches zero in one step


class ScalePenalty:
    """Adds an L1 penalty on the scales of prunable channels to every step of an optimizer.

    Channels are numbered across all groups of the graph. Coupled: λ·sign(γ) is added to the
    gradient. Decoupled: after the step, |γ| is reduced by λ·rate, but not below zero. Adaptive
    optimizers normalise the gradient and thereby λ, so for them the penalty is always decoupled.
    """

    def __init__(
        self, model: nn.Module, graph: ChannelGraph, optimizer: Optimizer, decoupled: bool = False
    ) -> None:
        self.decoupled = decoupled or not isinstance(optimizer, SGD)
        self.strength = 0.0  # the largest λ
        self.scales = _find_scales(model, graph)
        _check_owned(optimizer, self.scales)
        self._set_rates: dict[str, float] = {}  # name of a scale -> its rate when λ was set
        self.penalised = torch.zeros(sum(g.size for g in graph.groups), dtype=torch.bool)
        for scale in self.scales:
            self.penalised[scale.channel[scale.channel >= 0]] = True
        self._optimizer, self._decays_shifts = optimizer, False
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    def set_penalties(self, penalties: Tensor, equalize_lr: bool = False) -> None:
        """Set λ of every channel; 0 means no penalty.

        equalize_lr: multiply λ where the learning rate is smaller, so that λ·rate is the same for
        all scales, and keep this distance per step until the next call: a scheduler may change the
        learning rate in between, by a factor of 1000 after a warm-up.
        """
        self.strength = float(penalties.max())
        rates, fastest = self.rates(), self.fastest_rate()
        self._set_rates = {}
        if equalize_lr:
            self._set_rates = {s.name: float(rates[id(s.weight)]) for s in self.scales}
        for scale in self.scales:
            scale.penalty.copy_(_spread(penalties, scale.channel))
            if equalize_lr:
                own = float(rates[id(scale.weight)])
                scale.penalty.mul_(fastest / own if own > 0 else 0.0)

    def decay_shifts(self, channels: Tensor, steps: float) -> None:
        """Move the shifts β of these channels to zero in this many steps; 0: hold them at zero."""
        self._decays_shifts = True
        for scale in self.scales:
            if scale.shift is not None:
                gone = _spread(channels, scale.channel).to(scale.shift.device)
                decay = (scale.shift.abs() * gone).max() / max(steps, 1.0)
                if steps <= 0:
                    decay = decay.new_tensor(torch.finfo(decay.dtype).max)
                scale.shift_decay.copy_(gone * decay)

    def magnitudes(self) -> Tensor:
        """|γ| of every channel, the largest where it has several."""
        sizes = [s.weight.detach().abs().float().cpu() for s in self.scales]
        return self.by_channel(sizes, "amax")

    def by_channel(self, entries: list[Tensor], reduce: str = "sum") -> Tensor:
        """One vector per scale -> one value per channel."""
        values = torch.zeros(len(self.penalised) + 1)
        for scale, entry in zip(self.scales, entries, strict=True):
            values.scatter_reduce_(0, scale.channel % values.numel(), entry, reduce)
        return values[:-1]

    def fastest_rate(self) -> float:
        """The largest of the `rates` of all scales."""
        rates = self.rates()
        return max(1e-12, *(float(rates[id(scale.weight)]) for scale in self.scales))

    def moving(self) -> Tensor:
        """The channels whose scales have a learning rate above 0 now."""
        rates = self.rates()
        entries = [
            torch.full_like(s.channel, float(rates[id(s.weight)]), dtype=torch.float32)
            for s in self.scales
        ]
        return self.by_channel(entries, "amax") > 0

    def detach(self) -> None:
        """Remove the hooks from the optimizer."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def state_dict(self) -> dict[str, Any]:
        return {
            "strength": self.strength,
            "fading": self._decays_shifts,
            "rates": dict(self._set_rates),
            "pull": {s.name: s.penalty.cpu().clone() for s in self.scales},
            "fade": {s.name: s.shift_decay.cpu().clone() for s in self.scales},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        given = {name: len(penalty) for name, penalty in state["pull"].items()}
        if given != {s.name: len(s.penalty) for s in self.scales}:
            raise TrainingError("this state belongs to another model: its scales differ")
        self.strength, self._decays_shifts = state["strength"], state["fading"]
        self._set_rates = dict(state.get("rates", {}))  # version 0.1 has none
        for scale in self.scales:
            scale.penalty.copy_(state["pull"][scale.name])
            scale.shift_decay.copy_(state["fade"][scale.name])

    def _before_step(
        self, optimizer: Optimizer, args: Any, kwargs: Any
    ) -> tuple[Any, dict[str, Any]] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0]: itself
        if closure is None or self.decoupled:
            self._add_to_gradients()
            return None

        def with_penalty() -> Any:
            loss = closure()
            self._add_to_gradients()
            return loss

        return (optimizer, with_penalty), {}

    @torch.no_grad()
    def _add_to_gradients(self) -> None:
        """Coupled: add λ·sign(γ) to the gradient, times the loss scale if the gradient has one."""
        if self.strength == 0 or self.decoupled:
            return
        loss_scale = getattr(self._optimizer, "grad_scale", None)
        for scale in self.scales:
            if scale.weight.grad is None:
                continue
            sign = scale.weight.sign()
            if loss_scale is not None:
                sign.mul_(loss_scale)
            scale.weight.grad.addcmul_(sign, scale.penalty)

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.strength != 0 and self.decoupled:
            self._shrink(optimizer)

    def _shrink(self, optimizer: Optimizer) -> None:
        """γ ← sign(γ)·max(|γ| − λ·rate, 0), and β likewise by its `shift_decay`."""
        moved = [s.weight.detach() for s in self.scales]
        distances = list(torch._foreach_mul([s.penalty for s in self.scales], self._step_rates()))
        if self._decays_shifts:
            moved += [s.shift.detach() for s in self.scales if s.shift is not None]
            distances += [s.shift_decay for s in self.scales if s.shift is not None]
        skipped = getattr(optimizer, "found_inf", None)
        if skipped is not None:  # 1 after infinite gradients: the optimizer changed nothing
            distances = list(torch._foreach_mul(distances, 1 - skipped))
        steps = torch._foreach_minimum(moved, distances)
        torch._foreach_maximum_(steps, torch._foreach_neg(distances))
        torch._foreach_sub_(moved, steps)

    def _step_rates(self) -> list[Any]:
        """The rate of every scale: the one when λ was set; 0 while its learning rate is 0."""
        now = self.rates()
        if not self._set_rates:
            return [now[id(s.weight)] for s in self.scales]
        return [
            self._set_rates[s.name] * (1.0 if float(now[id(s.weight)]) > 0 else 0.0)
            for s in self.scales
        ]

    def rates(self) -> dict[int, Any]:
        """id of a parameter -> the distance that λ = 1 moves it in one step.

        This is lr; for SGD with momentum it is the distance per step in the long run.
        """
        rates = {}
        for group in self._optimizer.param_groups:
            rate = group["lr"]
            if isinstance(self._optimizer, SGD) and group["momentum"]:
                rate = rate * (1 - group["dampening"]) / (1 - group["momentum"])
            rates.update({id(p): rate for p in group["params"]})
        return rates


def _find_scales(model: nn.Module, graph: ChannelGraph) -> list[Scale]:
    """The scale vectors of all groups, each with the channels its entries belong to."""
    tensors = tensors_of(model)
    channels: dict[str, Tensor] = {}
    start = 0
    for number, group in enumerate(graph.groups):
        # a channel that fades still counts in the statistics of a norm over channels
        for slot in () if graph.label_index.norms_of(number) else group.scales:
            weight = tensors[slot.param]
            if not isinstance(weight, nn.Parameter) or weight.dim() != 1:
                continue
            entries = channels.setdefault(slot.param, torch.full((weight.numel(),), -1))
            index = torch.tensor(slot.index).view(group.size, -1)
            entries[index] = torch.arange(start, start + group.size).unsqueeze(1).expand_as(index)
        start += group.size
    if not channels:
        raise TrainingError(_no_scales(graph))
    found = []
    for name, entries in channels.items():
        weight, shift = tensors[name], tensors.get(graph.label_index.shifts.get(name, ""))
        assert isinstance(weight, nn.Parameter)
        shift = shift if isinstance(shift, nn.Parameter) and shift.requires_grad else None
        penalty = torch.zeros_like(weight.data)
        found.append(Scale(name, weight, entries, penalty, shift, torch.zeros_like(penalty)))
    return found


def _spread(channels: Tensor, entries: Tensor) -> Tensor:
    """One value per channel -> one per entry of a scale vector; -1 means no channel."""
    return torch.cat([channels, channels.new_zeros(1)])[entries]


def _no_scales(graph: ChannelGraph) -> str:
    why = "no channel can be pruned" if not graph.groups else "no prunable channel passes a BN"
    if not graph.groups and graph.kept:
        why += f" ({graph.kept[0].name!r}: {graph.kept[0].reason})"
    if graph.label_index.norms:
        why += ", and channels in the statistics of a LayerNorm or its kind cannot fade"
    return (
        f"there is no scale to penalise: {why}. Sparse training needs a network with "
        "BatchNorm layers (affine=True); dafp.slim prunes others in one shot"
    )


def _check_owned(optimizer: Optimizer, scales: list[Scale]) -> None:
    if isinstance(getattr(optimizer, "optimizer", None), Optimizer):
        raise TrainingError(
            f"{type(optimizer).__name__} only wraps the optimizer that makes the steps; give that "
            "one: optimizer.optimizer"
        )
    owned = {id(p) for group in optimizer.param_groups for p in group["params"]}
    strays = [s.name for s in scales if id(s.weight) not in owned]
    if strays:
        raise TrainingError(
            f"the optimizer does not train {strays[0]!r}"
            + (f" and {len(strays) - 1} other scales" if len(strays) > 1 else "")
            + "; make it from the parameters of this very model"
        )
    frozen = [s.name for s in scales if not s.weight.requires_grad]
    if frozen:
        raise TrainingError(f"the scale {frozen[0]!r} is frozen (requires_grad=False)")
