"""Train towards sparsity, in anybody's own loop: three lines, no λ to choose."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from .control import Course, SparsityController
from .copying import tensors_of
from .criteria import Criterion, Scores
from .errors import TrainingError
from .fingerprint import check_same_model
from .graph import ChannelGraph
from .plan import PruningPlan
from .selection import local_threshold, removed_share
from .slimming import criterion_named

CONTROLS = 4  # times per epoch that step="auto" looks at the network
_STUBBORN = 1.2  # how much harder it pulls when the chosen channels resist


@dataclass(frozen=True)
class Record:
    """What one epoch of sparse training came to."""

    epoch: int
    penalty: float  # λ of the epoch that comes next
    sparsity: float  # P: the share that p would remove now, in the unit of the target
    target: float
    aim: float  # where P would be on a straight line to the target
    filters: float  # P in filters, whatever the unit


class _Scale(NamedTuple):
    """One vector of scales, and the channel that each entry scales (-1: none that can go)."""

    name: str
    weight: nn.Parameter
    channel: Tensor  # on the CPU
    pull: Tensor  # λ where an entry is pulled, on the device of the weight
    shift: nn.Parameter | None  # the β beside it
    fade: Tensor  # how far β of dead entries goes towards zero in a step


class SparseTraining:
    """Adds the L1 penalty on the BN scales to every step of an optimizer, and steers it.

        graph = dafp.trace(model, example)
        sparse = dafp.SparseTraining(model, graph, optimizer, target=0.5, epochs=40)
        ...                                 # your loop, unchanged
            record = sparse.end_epoch()     # after every epoch

    P is the share of `unit` (filters, params or macs) that local_threshold at `p` would remove.
    step="auto" arrives at the target by itself (docs/sparsity.md); a number is Algorithm 1.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: ChannelGraph,
        optimizer: Optimizer,
        target: float = 0.5,
        epochs: int = 40,
        p: float = 0.01,
        criterion: str | Criterion = "dependency_aware",
        step: float | str = "auto",
        *,
        unit: str = "filters",
    ) -> None:
        check_same_model(model, graph)
        self.controller = SparsityController(target, epochs, step)
        if not 0 < p < 1:
            raise TrainingError(f"p={p} must lie between 0 and 1, e.g. 0.01")
        if unit not in ("filters", "params", "macs"):
            raise TrainingError(f"unit={unit!r} is not known; choose 'filters', 'params' or 'macs'")
        self.model, self.graph, self.optimizer = model, graph, optimizer
        self.target, self.epochs, self.p, self.unit = target, epochs, p, unit
        self.criterion = criterion_named(criterion)
        self.records: list[Record] = []
        self._sizes = [g.size for g in graph.groups]
        self._starts = torch.tensor([0, *self._sizes]).cumsum(0).tolist()
        self._is_filter = torch.cat(
            [torch.full((g.size,), g.kind == "filter") for g in graph.groups] or [torch.zeros(0)]
        ).bool()
        self._scales = _find_scales(model, graph, self._starts)
        _check_owned(optimizer, self._scales)
        self._penalised = torch.zeros(self._starts[-1], dtype=torch.bool)
        for scale in self._scales:
            self._penalised[scale.channel[scale.channel >= 0]] = True
        self._reach()
        self._step, self._in_epoch, self._per_epoch = 0, 0, 0
        self._effort, self._expected = 1.0, float("nan")
        # an adaptive optimizer would normalise λ away; steering needs scales that stop at zero
        self._decoupled = self.controller.step == "auto" or not isinstance(optimizer, SGD)
        self._hooks = [
            optimizer.register_step_pre_hook(self._before_step),
            optimizer.register_step_post_hook(self._after_step),
        ]

    # ---- what the loop sees --------------------------------------------------------------------

    @property
    def penalty(self) -> float:
        """λ now."""
        return self.controller.penalty

    def end_epoch(self) -> Record:
        """Judge the network, steer λ for what comes, and say where it stands."""
        if self._in_epoch == 0:
            raise TrainingError(
                "end_epoch() was called, but the optimizer made no step since the last epoch; is "
                "it the optimizer that was given to SparseTraining?"
            )
        self._per_epoch, self._in_epoch = self._in_epoch, 0
        scores = self.scores()
        sparsity = self.sparsity(scores)
        if self.controller.step == "auto":
            self._steer(scores)
        else:
            self._pull(self.controller.update(sparsity), self._penalised)
        record = Record(
            len(self.records) + 1, self.penalty, sparsity, self.target,
            self._course().aim(self.target), self._share(scores, "filters"),
        )  # fmt: skip
        self.records.append(record)
        return record

    def scores(self) -> Scores:
        """The criterion's scores of the network as it is now."""
        return self.criterion(self.model, self.graph)

    def sparsity(self, scores: Scores | None = None) -> float:
        """P: the share of the unit that local_threshold at p would remove now."""
        return self._share(self.scores() if scores is None else scores, self.unit)

    def plan(self) -> PruningPlan:
        """What local_threshold at p removes now, made legal."""
        return self.graph.resolve(local_threshold(self.scores(), self.p))

    def detach(self) -> None:
        """Leave the optimizer as it was."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []

    def state_dict(self) -> dict[str, Any]:
        """Everything it takes to go on after a restart: plain numbers and small tensors."""
        return {
            "penalty": self.penalty,
            "sparsity": self.controller.sparsity,
            "epoch": self.controller.epoch,
            "step": self._step,
            "in_epoch": self._in_epoch,
            "per_epoch": self._per_epoch,
            "effort": self._effort,
            "expected": self._expected,
            "records": [tuple(vars(r).values()) for r in self.records],
            "pull": {s.name: s.pull.cpu().clone() for s in self._scales},
            "fade": {s.name: s.fade.cpu().clone() for s in self._scales},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        given = {name: len(pull) for name, pull in state["pull"].items()}
        if given != {s.name: len(s.pull) for s in self._scales}:
            raise TrainingError("this state belongs to another model: its scales are others")
        self.controller.penalty = state["penalty"]
        self.controller.sparsity, self.controller.epoch = state["sparsity"], state["epoch"]
        self._step, self._in_epoch = state["step"], state["in_epoch"]
        self._per_epoch, self._effort = state["per_epoch"], state["effort"]
        self._expected = state["expected"]
        self.records = [Record(*values) for values in state["records"]]
        for scale in self._scales:
            scale.pull.copy_(state["pull"][scale.name])
            scale.fade.copy_(state["fade"][scale.name])

    # ---- the penalty, at every step --------------------------------------------------------------

    def _before_step(
        self, optimizer: Optimizer, args: Any, kwargs: Any
    ) -> tuple[Any, dict[str, Any]] | None:
        closure = kwargs.get("closure", args[1] if len(args) > 1 else None)  # args[0]: itself
        if closure is None or self._decoupled:
            self._add_to_gradients()
            return None

        def with_penalty() -> Any:
            loss = closure()
            self._add_to_gradients()
            return loss

        return (optimizer, with_penalty), {}

    @torch.no_grad()
    def _add_to_gradients(self) -> None:
        """SGD: λ·sign(γ) joins the gradient, once it is unscaled (or scaled alike, if fused)."""
        if self.penalty == 0 or self._decoupled:
            return
        loss_scale = getattr(self.optimizer, "grad_scale", None)
        for scale in self._scales:
            if scale.weight.grad is None:
                continue
            sign = scale.weight.sign()
            if loss_scale is not None:
                sign.mul_(loss_scale)
            scale.weight.grad.addcmul_(sign, scale.pull)

    @torch.no_grad()
    def _after_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self.penalty != 0 and self._decoupled:
            self._shrink(optimizer)
        self._step += 1
        self._in_epoch += 1
        if self.controller.step == "auto" and self._per_epoch:
            period = max(1, self._per_epoch // CONTROLS)
            if self._in_epoch % period == 0 and self._in_epoch <= period * (CONTROLS - 1):
                self._steer(self.scores())

    def _shrink(self, optimizer: Optimizer) -> None:
        """γ ← sign(γ)·max(|γ| − way, 0): as far as λ moves a free scale, but never past zero."""
        skipped = getattr(optimizer, "found_inf", None)
        speeds = self._speeds()
        for scale in self._scales:
            way, fade = scale.pull * speeds[id(scale.weight)], scale.fade
            if skipped is not None:  # 1 after infinite gradients: the optimizer changed nothing
                way, fade = way * (1 - skipped), fade * (1 - skipped)
            scale.weight.sub_(scale.weight.clamp(-way, way))
            if scale.shift is not None and self.controller.step == "auto":
                scale.shift.sub_(scale.shift.clamp(-fade, fade))

    def _speeds(self) -> dict[int, Any]:
        """How far λ = 1 moves a free scale in one step: lr, built up by momentum in SGD."""
        speeds = {}
        for group in self.optimizer.param_groups:
            speed = group["lr"]
            if isinstance(self.optimizer, SGD) and group["momentum"]:
                speed = speed * (1 - group["dampening"]) / (1 - group["momentum"])
            speeds.update({id(p): speed for p in group["params"]})
        return speeds

    # ---- the steering, a few times an epoch ------------------------------------------------------

    def _course(self) -> Course:
        return Course(self.epochs * self._per_epoch, self._step)

    @torch.no_grad()
    def _steer(self, scores: Scores) -> None:
        """Choose the channels that are to go, and pull so that they are gone in time.

        First all channels compete under the same λ: those that the loss does not hold fall behind.
        Then, from `Course.commit`, only the chosen ones are pulled, so that P ends where it should.
        """
        course = self._course()
        relative = self._relative(scores)
        dead = relative <= self.p
        chosen = self._choose(relative)
        self._fade_shifts(dead & chosen, course)
        waiting = chosen & ~dead & self._penalised & self._is_filter
        if not bool(waiting.any()):  # arrived: hold what is dead, leave the others in peace
            self._expected = float("nan")
            self._pull(self.penalty, chosen)
            return
        period = max(1, self._per_epoch // CONTROLS)
        size = self._magnitudes()
        committed = course.step >= course.commit
        far = float(size[waiting].max() if committed else size[waiting].mean())
        if far > self._expected:
            self._effort *= _STUBBORN
        left = (course.arrival if committed else course.commit) - course.step
        speed = self._effort * far / max(left, 2.0 * period)
        self._expected = far - 0.5 * speed * period
        if committed:
            pulled = chosen
        else:  # none that should stay may get within reach of zero
            near = size <= 2 * speed * period
            pulled = self._penalised & (chosen | ~near)
        if not committed and course.step + period >= course.commit:
            self._expected = float("nan")  # the next look is at another quantity
        self._pull(speed / max(1e-12, float(self._speeds()[id(self._scales[0].weight)])), pulled)

    def _pull(self, penalty: float, channels: Tensor) -> None:
        """From now on λ acts on the scales of these channels."""
        self.controller.penalty = penalty
        for scale in self._scales:
            scale.pull.copy_(_spread(channels, scale.channel) * penalty)

    def _fade_shifts(self, channels: Tensor, course: Course) -> None:
        """A scale at zero leaves σ(β): let β follow, so that in the end nothing is left to lose."""
        left = max(course.rest - course.step, 1.0, self._per_epoch / CONTROLS)
        for scale in self._scales:
            if scale.shift is not None:
                gone = _spread(channels, scale.channel).to(scale.shift.device)
                far = (scale.shift.abs() * gone).max() / left
                if course.step >= course.rest:  # from here on no gradient moves it from zero
                    far = far.new_tensor(torch.finfo(far.dtype).max)
                scale.fade.copy_(gone * far)

    def _choose(self, relative: Tensor) -> Tensor:
        """The channels of lowest relative score whose removal reaches the target."""
        order = torch.where(self._is_filter, relative, torch.inf).argsort(stable=True)
        low, high = 0, int(self._is_filter.sum())
        if self.unit == "filters" and not self.graph.structure.balances:
            high = round(self.target * high)
        else:
            while low < high:
                middle = (low + high) // 2
                if self._share_without(order[:middle]) < self.target:
                    low = middle + 1
                else:
                    high = middle
        chosen = torch.zeros_like(self._is_filter)
        chosen[order[:high]] = True
        cut = relative[order[high - 1]] if high else -1.0
        return chosen | (~self._is_filter & (relative <= cut))

    def _share_without(self, channels: Tensor) -> float:
        stays = torch.ones_like(self._is_filter)
        stays[channels] = False
        keep = {
            group.name: tuple(part.nonzero().flatten().tolist())
            for group, part in zip(self.graph.groups, stays.split(self._sizes), strict=True)
        }
        sizes = {g.name: g.size for g in self.graph.groups}
        return removed_share(self.graph, PruningPlan(keep, sizes), self.unit)

    def _share(self, scores: Scores, unit: str) -> float:
        return removed_share(self.graph, local_threshold(scores, self.p), unit)

    def _relative(self, scores: Scores) -> Tensor:
        """Every channel's score as a share of the best of its group."""
        parts = [scores[g.name].detach().double().cpu() for g in self.graph.groups]
        return torch.cat([s / s.max().clamp(min=1e-300) for s in parts])

    def _magnitudes(self) -> Tensor:
        """|γ| of every channel, the largest where it has several."""
        size = torch.zeros(self._starts[-1] + 1)
        for scale in self._scales:
            value = scale.weight.detach().abs().float().cpu()
            size.scatter_reduce_(0, scale.channel % size.numel(), value, "amax")
        return size[:-1]

    def _reach(self) -> None:
        """Refuse a target that cannot be reached by the channels that have scales."""
        free = (self._penalised & self._is_filter).split(self._sizes)
        most = sum(min(int(part.sum()), len(part) - 1) for part in free)  # one of each stays
        reach = most / max(1, int(self._is_filter.sum()))
        if self.unit == "filters" and self.target > reach:
            raise TrainingError(
                f"target={self.target} of filters is out of reach: only {reach:.3f} of them have a "
                "BN scale that can be penalised, leaving one in each layer"
            )


def _find_scales(model: nn.Module, graph: ChannelGraph, starts: list[int]) -> list[_Scale]:
    """The scale vectors of all groups, each with the channels its entries belong to."""
    tensors = tensors_of(model)
    channels: dict[str, Tensor] = {}
    for start, group in zip(starts, graph.groups, strict=False):
        for slot in group.scales:
            weight = tensors[slot.param]
            if not isinstance(weight, nn.Parameter) or weight.dim() != 1:
                continue
            entries = channels.setdefault(slot.param, torch.full((weight.numel(),), -1))
            index = torch.tensor(slot.index).view(group.size, -1)
            entries[index] = torch.arange(start, start + group.size).unsqueeze(1).expand_as(index)
    if not channels:
        raise TrainingError(_no_scales(graph))
    found = []
    for name, entries in channels.items():
        weight, shift = tensors[name], tensors.get(graph.structure.shifts.get(name, ""))
        assert isinstance(weight, nn.Parameter)
        shift = shift if isinstance(shift, nn.Parameter) and shift.requires_grad else None
        pull = torch.zeros_like(weight.data)
        found.append(_Scale(name, weight, entries, pull, shift, torch.zeros_like(pull)))
    return found


def _spread(channels: Tensor, entries: Tensor) -> Tensor:
    """One flag per channel -> one per entry of a scale vector; -1 stands for no channel."""
    return torch.cat([channels, torch.zeros(1, dtype=torch.bool)])[entries]


def _no_scales(graph: ChannelGraph) -> str:
    why = "no channel can be pruned" if not graph.groups else "no prunable channel passes a BN"
    if not graph.groups and graph.kept:
        why += f" ({graph.kept[0].name!r}: {graph.kept[0].reason})"
    return (
        f"there is no scale to penalise: {why}. Sparse training needs a network with "
        "BatchNorm layers (affine=True); dafp.slim prunes others in one shot"
    )


def _check_owned(optimizer: Optimizer, scales: list[_Scale]) -> None:
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
